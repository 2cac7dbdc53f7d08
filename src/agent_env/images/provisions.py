"""What a build gets beside its own files: wheels that its Dockerfile asks for, so that it needs no network, and base images that this
installation uses in place of others.

A Dockerfile asks in a comment before its first instruction: `# agent-env: wheels=requirements.txt python=3.12`. The folder `wheels/` then
holds wheels of all that the file names and of what they need, with a `requirements.txt` that pins each; a file with digests is a lock, and
holds all that there is. Our own SDK is packed from what is installed here. A context that brings a folder `wheels` of its own is left as it
is. With `npm=package-lock.json` in the same comment the file `npm/node_modules.tar` holds the packages that the lock file says, for
`ADD npm/node_modules.tar /opt/kit/`.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from agent_env.errors import Problem, ProblemsError, StorageError
from agent_env.images.building import BuildRequest
from agent_env.images.context import BuildContext, Entry
from agent_env.images.ledger import STATE_FOLDER
from agent_env.images.node_modules import NodeModules
from agent_env.images.own_wheels import OWN, own_wheel
from agent_env.images.reference import ImageReference
from agent_env.images.wheelhouse import Wheelhouse, Wheels
from agent_env.images.whole import written

FOLDER = "wheels"
_ASKED = re.compile(r"#\s*agent-env:\s*(.*)")
_FROM = re.compile(r"^(\s*FROM\s+(?:--\S+\s+)*)(\S+)", re.IGNORECASE | re.MULTILINE)
_PYTHON_TAG = re.compile(r"python:(\d+\.\d+)")
_PROJECT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_BASES = "bases.json"
_KEYS = frozenset({"wheels", "python", "libc", "npm"})
_NPM = "npm/node_modules.tar"

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Asked:
    """What a Dockerfile asks for."""

    requirements: str
    """A file of the context."""
    python: str
    libc: str = "glibc"
    npm: str | None = None
    """A lock file of the context, beside its `package.json`."""


class Bases:
    """Base images that this installation uses in place of others: where a registry can't be reached, or must not be.

    Args:
        state_root: The installation's state folder.
    """

    def __init__(self, state_root: Path) -> None:
        self._file = state_root / STATE_FOLDER / _BASES

    def read(self) -> dict[str, str]:
        """Name in a Dockerfile → image that is used.

        Raises:
            StorageError: They can't be read.
        """
        try:
            return {str(name): str(image) for name, image in json.loads(self._file.read_text(encoding="utf-8")).items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, AttributeError) as error:
            raise StorageError(f"{self._file} can't be read: {error}", concerns=str(self._file), hint="mend or remove it") from error

    def meant(self, name: str) -> str:
        """The image that is used where a Dockerfile has this name.

        Raises:
            StorageError: They can't be read.
        """
        return _meant(name, self.read()) or name

    def write(self, name: str, image: str | None) -> None:
        """Has an image used in place of another one; None has the named one used again.

        Raises:
            UserError: One of them is no image name.
            StorageError: It can't be written.
        """
        bases = self.read()
        key = str(ImageReference.parse(name))
        bases.pop(key, None)
        if image is not None:
            bases[key] = str(ImageReference.parse(image))
        _put(self._file, json.dumps(bases, indent=2, sort_keys=True) + "\n")


async def provisioned(request: BuildRequest, state_root: Path, wheelhouse: Wheelhouse, tell: Tell) -> BuildRequest:
    """A request with everything that it gets beside its own files; the same one when that is nothing.

    Args:
        request: What is to be built.
        state_root: The installation's state folder.
        wheelhouse: Fetches wheels.
        tell: Hears what is done to it.

    Raises:
        ProblemsError: It asks for something that can't be had.
        TransferError: Wheels are not here, and no index can be reached.
    """
    context, text = request.context, request.context.dockerfile_text()
    asked = asked_for(text, context)
    if asked is not None:
        wheels = await _fetched(asked, request, state_root, wheelhouse)
        context = await asyncio.to_thread(_with_wheels, context, wheels.folder)
        if asked.npm is not None:
            context = await _with_packages(context, asked.npm, asked.libc, request.platform, state_root)
    changed = _with_bases(text, Bases(state_root).read(), tell)
    if changed != text:
        digest = hashlib.sha256(changed.encode()).hexdigest()
        path = state_root / STATE_FOLDER / "dockerfiles" / digest
        _put(path, changed)
        context = _with(context, [_entry(context.dockerfile, path)])
    return request if context is request.context else replace(request, context=context)


def recipe(request: BuildRequest, state_root: Path) -> str | None:
    """A digest of all that decides what `provisioned` will give, from facts that are at hand; None where that is the request itself.

    Wheels of the same requirements are the same wheels: they were fetched once. Our own are told by their sources.

    Raises:
        ProblemsError: It asks for something that can't be had.
    """
    context, text = request.context, request.context.dockerfile_text()
    asked, changed = asked_for(text, context), _with_bases(text, Bases(state_root).read(), lambda _: None)
    if asked is None and changed == text:
        return None
    wanted = _wanted(context, asked, state_root) if asked is not None else []
    return hashlib.sha256(json.dumps([request.sources, changed, wanted]).encode()).hexdigest()


def asked_for(dockerfile: str, context: BuildContext) -> Asked | None:
    """What a Dockerfile asks for; None when that is nothing, or the context brings it.

    Raises:
        ProblemsError: It asks for something that nobody knows, or that can't be told.
    """
    found = next((match for line in _comments(dockerfile) if (match := _ASKED.fullmatch(line))), None)
    if found is None or any(entry.name.startswith(f"{FOLDER}/") for entry in context.entries):
        return None
    words = dict(word.partition("=")[::2] for word in found[1].split())
    problems = [f"asks for {key!r}, which nobody knows" for key in sorted(words.keys() - _KEYS)]
    requirements, python = words.get("wheels", ""), words.get("python") or _python_of(dockerfile)
    if not any(entry.name == requirements for entry in context.entries):
        problems.append(f"asks for the wheels of {requirements!r}, which is no file of its context")
    npm = words.get("npm")
    for name in (npm, npm and npm.replace("package-lock.json", "package.json")):
        if name is not None and not any(entry.name == name for entry in context.entries):
            problems.append(f"asks for the packages of {npm!r}, but {name!r} is no file of its context")
    if python is None:
        problems.append("asks for wheels, and its base image does not say for which Python; add python=3.12")
    if problems or python is None:
        raise ProblemsError([Problem(message, context.dockerfile) for message in problems])
    return Asked(requirements, python, words.get("libc") or ("musl" if "alpine" in dockerfile else "glibc"), npm)


def _comments(dockerfile: str) -> list[str]:
    lines = []
    for line in dockerfile.splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            break
        lines.append(line.strip())
    return lines


def _python_of(dockerfile: str) -> str | None:
    found = _PYTHON_TAG.search(" ".join(match[2] for match in _FROM.finditer(dockerfile)))
    return found[1] if found else None


async def _fetched(asked: Asked, request: BuildRequest, state_root: Path, wheelhouse: Wheelhouse) -> Wheels:
    wanted = await asyncio.to_thread(_wanted, request.context, asked, state_root)
    return await wheelhouse.fetch(wanted, python=asked.python, platform=request.platform, libc=asked.libc)


def _wanted(context: BuildContext, asked: Asked, state_root: Path) -> list[str]:
    source = next(entry.path for entry in context.entries if entry.name == asked.requirements)
    text = source.read_text(encoding="utf-8").replace("\\\n", " ")  # a lock has its digests on lines of their own
    lines = [" ".join(line.partition(" #")[0].split()) for line in text.splitlines()]
    return [_own_or(line, state_root) for line in lines if line and not line.startswith("#")]


def _with_wheels(context: BuildContext, folder: Path) -> BuildContext:
    return _with(context, [_entry(f"{FOLDER}/{path.name}", path) for path in sorted(folder.iterdir())])


async def _with_packages(context: BuildContext, lock: str, libc: str, platform: str | None, state_root: Path) -> BuildContext:
    files = {entry.name: entry.path for entry in context.entries}
    package = files[lock.replace("package-lock.json", "package.json")]
    archive = await NodeModules(state_root).fetch(package, files[lock], platform=platform, libc=libc)
    return await asyncio.to_thread(lambda: _with(context, [_entry(_NPM, archive)]))


def _own_or(requirement: str, state_root: Path) -> str:
    """A requirement of our own distributions as the wheel that is packed here: no index has it."""
    name = _PROJECT.match(requirement)
    if name is None or name[0].lower().replace("_", "-") not in OWN:
        return requirement
    extras = re.search(r"\[[^\]]*\]", requirement)
    return f"{own_wheel(name[0].lower().replace('_', '-'), state_root / STATE_FOLDER / 'own')}{extras[0] if extras else ''}"


def _with(context: BuildContext, more: list[Entry]) -> BuildContext:
    entries = {entry.name: entry for entry in (*context.entries, *more)}
    return replace(context, entries=tuple(entries[name] for name in sorted(entries)))


def _entry(name: str, path: Path) -> Entry:
    with path.open("rb") as file:
        return Entry(name, path, 0o644, path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest())


def _meant(name: str, bases: Mapping[str, str]) -> str | None:
    return bases.get(name) or bases.get(name.partition("@")[0])


def _with_bases(dockerfile: str, bases: Mapping[str, str], tell: Tell) -> str:
    def used(found: re.Match[str]) -> str:
        name = found[2]
        image = _meant(name, bases)
        if image is None:
            return found[0]
        tell(f"{image} is used in place of {name}, as `agent-env image base` was told")
        return f"{found[1]}{image}"

    return _FROM.sub(used, dockerfile) if bases else dockerfile


def _put(path: Path, text: str) -> None:
    """Whole or not at all: another build may read or write it at this moment."""
    with written(path) as aside:
        aside.write_text(text, encoding="utf-8")
