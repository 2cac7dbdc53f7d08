"""Opens the images that a configuration names: the engine's, and those that are unpacked without one."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent_env.config.checks import is_reference
from agent_env.errors import EngineDeniedError, EngineUnavailableError
from agent_env.images.credentials import REGISTRIES_KEY, DockerKeyring, Keyring, KnownKeyring, configured
from agent_env.images.oci.store import ImageStore
from agent_env.images.wheelhouse import Wheelhouse
from agent_env.stores.installation import home_of
from agent_env.stores.opening import SECRETS_FILE
from agent_env.stores.secrets import Secret, Secrets

if TYPE_CHECKING:
    from agent_env.config import Config
    from agent_env.images.images import Images


@dataclass(frozen=True)
class Opened:
    """Everything of an installation that has to do with images."""

    images: Images | None
    """None where no engine can be used."""
    why_not: str | None
    """Why there is no engine."""
    store: ImageStore
    wheelhouse: Wheelhouse


@asynccontextmanager
async def open_images(
    config: Config,
    *,
    environ: Mapping[str, str] | None = None,
    seen: Callable[[str], object] | None = None,
    redact: Callable[[str], str] = str,
) -> AsyncIterator[Opened]:
    """The images of an installation, closed when the block ends.

    Args:
        config: Names the state folder, limits, and credentials for registries.
        environ: Names the engine and Docker's configuration; None is this process's own.
        seen: Told every secret before it is used.
        redact: Takes known secrets out of a build's log.

    Raises:
        NotFoundError: A credential is a reference without a value.
        ConfigError: Docker's configuration is damaged.
    """
    from agent_env.containers import engine_problem, open_engine
    from agent_env.images.images import Images

    variables = os.environ if environ is None else environ
    keyring = keyring_of(config, environ=variables, seen=seen)
    wheelhouse = Wheelhouse(config.state_root, environ=variables, limits=config.limits)

    def store(images: Images | None) -> ImageStore:
        return ImageStore(config.state_root, keyring=keyring, images=images, limits=config.limits)

    try:
        engine = open_engine(variables, limits=config.limits)
    except (EngineUnavailableError, EngineDeniedError) as error:
        yield Opened(None, str(error), store(None), wheelhouse)
        return
    async with engine:
        why = await engine_problem(engine)
        images = Images(
            engine, state_root=config.state_root, home=home_of(config.state_root), limits=config.limits, keyring=keyring, redact=redact
        )
        usable = images if why is None else None
        yield Opened(usable, why, store(usable), wheelhouse)


def keyring_of(config: Config, *, environ: Mapping[str, str], seen: Callable[[str], object] | None = None) -> Keyring:
    """Credentials of the configuration, and after them those that `docker login` left.

    Raises:
        NotFoundError: A credential is a reference without a value.
    """
    secrets = Secrets(config.state_root / SECRETS_FILE, environ=environ, seen=seen)

    def resolve(text: str) -> Secret:
        if is_reference(text):
            return secrets.resolve(text)
        if seen is not None:
            seen(text)
        return Secret(text)

    return KnownKeyring(configured(config.get(REGISTRIES_KEY, {}), resolve), DockerKeyring.of_user(environ, seen=seen))
