"""Images of environments: what they are called, the gateway's own, built of this very package, and what no document names."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import TYPE_CHECKING

import agent_env_sdk

import agent_env
from agent_env.documents.stored import Ref
from agent_env.environments.deploy import plan_of
from agent_env.environments.providers.gateway_parts import wants_database

if TYPE_CHECKING:
    from agent_env.artifacts.image_artifacts import ImageSource
    from agent_env.environments.contract import DeployPlan, Making
    from agent_env.environments.lookup import StoredLookup
    from agent_env.environments.settings import EnvironmentSettings
    from agent_env.images import BuildRequest

GATEWAY_IMAGE = "agent-env/gateway"
_NEEDS = ("h11", "httpx", "psycopg", "pydantic", "regex", "sniffio", "uvicorn")
"""Of this package's requirements, those of the gateway."""
_EXTRA = "gateway"
_VERSION = re.compile(r"(\d+\.\d+)")
_DEFAULT_PYTHON = "3.12"
_DOCKERFILE = """# agent-env: wheels=requirements.txt python={python} libc={libc}
FROM {base}
COPY wheels /tmp/wheels
RUN python3 -m pip install --no-cache-dir --no-index --find-links /tmp/wheels --require-hashes -r /tmp/wheels/requirements.txt \\
 && rm -rf /tmp/wheels
COPY src /opt/agent-env
ENV PYTHONPATH=/opt/agent-env PYTHONUNBUFFERED=1
RUN python3 -m compileall -q /opt/agent-env && python3 -c 'import agent_env.gateway.__main__'
CMD ["python3", "-m", "agent_env.gateway"]
"""


def name_of(image: ImageSource) -> str:
    """What people call an image."""
    return image if isinstance(image, str) else str(image.name)


async def gateway_source(plan: DeployPlan, making: Making) -> ImageSource:
    """What a deployment's gateway is made of: the document's image, else ours.

    Raises:
        StorageError: Ours can't be prepared.
    """
    if plan.gateway_image is not None:
        return plan.gateway_image
    return await asyncio.to_thread(gateway_build, making.settings.base_image, making.state_root)


def gateway_build(base: str, state_root: Path) -> BuildRequest:
    """The gateway's image as it is built of this very package and of wheels; its name says what of. It blocks while sources are read.

    Args:
        base: The image that it is built upon.
        state_root: The installation's state folder, which keeps what is in no package.

    Raises:
        StorageError: It can't be written there.
    """
    from agent_env.images import BuildContext, BuildRequest, ImageReference
    from agent_env.images.context import read_entry
    from agent_env.images.whole import written

    libc = "musl" if "alpine" in base else "glibc"
    own = {
        "Dockerfile": _DOCKERFILE.format(base=base, python=_python_of(base), libc=libc),
        "requirements.txt": "".join(f"{line}\n" for line in _requirements()),
    }
    root = state_root / "images" / "gateway" / hashlib.sha256("\0".join(own.values()).encode()).hexdigest()[:16]
    for name, text in own.items():
        if not (root / name).is_file():
            with written(root / name) as aside:
                aside.write_text(text)
    files = {**{name: root / name for name in own}, **{f"src/{name}": path for name, path in _sources()}}
    context = BuildContext(root, "Dockerfile", tuple(read_entry(files[name], name) for name in sorted(files)))
    return BuildRequest(context, ImageReference.parse(f"{GATEWAY_IMAGE}:{context.source_digest(None)[:16]}"), upon=base)


def unnamed_images(
    lookup: StoredLookup, env_id: str, env_version: int | None, settings: EnvironmentSettings, state_root: Path, *, state_type: str | None
) -> list[ImageSource]:
    """What an environment's containers are made of beside what its document names: the gateway, and a database where one is needed.

    Whether a server needs a database is known for certain once its image is there; here its Dockerfile's word is taken.

    Args:
        lookup: Finds its documents and images.
        env_id: The environment.
        env_version: Its version; None is the newest.
        settings: Chooses base images.
        state_root: The installation's state folder.
        state_type: What the one who deploys chose (`env_state_type`).

    Raises:
        NotFoundError: Something that it names does not exist.
    """
    plan = plan_of(lookup.environment(Ref(id=env_id, version=env_version)), lookup, settings=settings)
    if plan.provider != "gateway":
        return []
    database = wants_database(replace(plan, options=replace(plan.options, env_state_type=state_type)))
    found: list[ImageSource] = [plan.gateway_image or gateway_build(settings.base_image, state_root), *plan.database.values()]
    return [*found, settings.database_image] if database and "db" not in plan.database else found


def _python_of(base: str) -> str:
    """As the image's tag says it."""
    found = _VERSION.search(base.rpartition(":")[2])
    return found[1] if found else _DEFAULT_PYTHON


def _requirements() -> list[str]:
    """What the gateway needs: exactly what is installed here where it is, so that what was tested is what runs."""
    found = []
    for requirement in requires("agent-env") or ():
        name = re.split(r"[\[<>=;! ]", requirement, maxsplit=1)[0]
        if name not in _NEEDS or ("extra ==" in requirement and f"'{_EXTRA}'" not in requirement.replace('"', "'")):
            continue
        wanted = requirement.partition(";")[0].strip()
        try:
            found.append(f"{re.split(r'[<>=! ]', wanted, maxsplit=1)[0]}=={version(name)}")
        except PackageNotFoundError:
            found.append(wanted)
    return sorted(found)


def _sources() -> Iterator[tuple[str, Path]]:
    """This package's vocabulary and its gateway, and the wire's types."""
    ours, sdk = Path(agent_env.__file__).parent, Path(agent_env_sdk.__file__).parent
    for folder, patterns in ((ours, ("*.py", "gateway/**/*.py")), (sdk, ("__init__.py", "wire/**/*.py"))):
        for pattern in patterns:
            for path in sorted(folder.glob(pattern)):
                yield f"{folder.name}/{path.relative_to(folder)}", path
