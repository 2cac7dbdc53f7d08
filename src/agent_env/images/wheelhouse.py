"""Wheels for our own images, fetched on the host: a build that installs from them needs no network, and gets the same files each time."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from agent_env.clock import Clock, SystemClock
from agent_env.defaults import DEFAULT_LIMITS, Limits
from agent_env.errors import StorageError, TransferError, UnsupportedError
from agent_env.images.ledger import STATE_FOLDER
from agent_env.images.locks import turn, turn_if_free
from agent_env.images.oci.tree import remove_below
from agent_env.images.platforms import Platform
from agent_env.redaction import mask_user_info
from agent_env.waiting import deadline, shielded

FOLDER = "wheelhouses"
REQUIREMENTS = "requirements.txt"
_PIPS = ((sys.executable, "-P", "-m", "pip"), ("uv", "tool", "run", "pip"), ("pip3",), ("pip",))
"""Commands that may be pip, the surest first: an environment that uv made holds none."""
_TAGS = {
    "glibc": ("manylinux_2_28_{}", "manylinux_2_17_{}", "manylinux2014_{}", "linux_{}"),
    "musl": ("musllinux_1_2_{}", "musllinux_1_1_{}", "linux_{}"),
}
_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
_EPOCH = "315532800"
"""1 January 1980, the first that a wheel's archive can hold: wheels of the same sources are the same bytes."""
_TAIL_LINES = 12
_RETRYING = "WARNING: Retrying"
_UNREACHABLE = "no package index could be reached, which is needed once; PIP_INDEX_URL or PIP_FIND_LINKS can name another place"


@dataclass(frozen=True, slots=True)
class Wheels:
    """A folder of wheels that together satisfy some requirements, and `requirements.txt`, which pins each by version and digest."""

    folder: Path
    names: tuple[str, ...]

    @property
    def requirements(self) -> str:
        """What `pip install --no-index --find-links FOLDER -r requirements.txt` reads."""
        return (self.folder / REQUIREMENTS).read_text()


class Wheelhouse:
    """The wheels of one installation.

    Args:
        state_root: The installation's state folder.
        environ: The variables that pip is started with; they may name an index.
    """

    def __init__(
        self, state_root: Path, *, environ: Mapping[str, str] | None = None, limits: Limits = DEFAULT_LIMITS, clock: Clock | None = None
    ) -> None:
        self._root = state_root / STATE_FOLDER / FOLDER
        self._locks = state_root / "locks"
        self._environ = dict(os.environ if environ is None else environ)
        self._limits = limits
        self._clock = clock or SystemClock()

    async def fetch(
        self,
        requirements: Sequence[str],
        *,
        python: str,
        platform: str | None = None,
        libc: str = "glibc",
        projects: Sequence[Path] = (),
    ) -> Wheels:
        """Wheels of requirements and all that they need; fetched once for the same request, then taken from here without any network.

        Args:
            requirements: As pip reads them. What is not pinned is what the index had when it was fetched first. Where one has a
                `--hash=`, they are a lock: exactly they are fetched and nothing that they need beside, each checked against its digests;
                one without any is refused, unless it is a wheel of this machine.
            python: The image's version, such as `3.12`.
            platform: The image's; None is this machine's.
            libc: The image's C library: `glibc`, or `musl` (Alpine).
            projects: Source folders of our own, of which wheels are built here.

        Raises:
            UnsupportedError: There is no pip here, or no such platform.
            TransferError: There is no such package or no wheel for the platform, or no index can be reached; pip's words are kept.
            DeadlineError: It took longer than `wheelhouse_seconds`, or another process did.
        """
        tags = _tags(Platform.parse(platform) if platform else Platform.here(), libc)
        with self._scratch() as scratch:
            built = await self._built(projects, scratch)
            key = _key(requirements, python, tags, built)
            async with turn(self._locks, [f"wheels:{key}"], "another process's fetch of the same wheels", limits=self._limits):
                if not (self._root / key).is_dir():
                    await self._fetch([*requirements, *map(str, built)], python, tags, scratch / "wheels")
                    self._keep(scratch / "wheels", key)
        moment = self._clock.now().timestamp()
        os.utime(self._root / key, (moment, moment))
        return Wheels(self._root / key, tuple(sorted(path.name for path in (self._root / key).glob("*.whl"))))

    def _keep(self, made: Path, key: str) -> None:
        try:
            made.rename(self._root / key)
        except OSError:
            if not (self._root / key).is_dir():  # else another installation that shares this folder was quicker
                raise

    def gc(self, *, everything: bool = False, dry_run: bool = False) -> tuple[str, ...]:
        """Removes what was not used for `wheelhouse_keep_seconds`, or everything, and what killed processes left. Returns their keys."""
        oldest = self._clock.now().timestamp() - self._limits.wheelhouse_keep_seconds
        gone = []
        for path in sorted(self._root.iterdir()) if self._root.is_dir() else ():
            left = path.name.startswith(".")
            with turn_if_free(self._locks, f"wheels:{path.name}") as ours:
                old = path.stat().st_mtime < (self._clock.now().timestamp() - self._limits.wheelhouse_seconds if left else oldest)
                if ours and (old or (everything and not left)):
                    gone += [] if left else [path.name]
                    if not dry_run:
                        remove_below(None, path)
        return tuple(gone)

    async def _built(self, projects: Sequence[Path], scratch: Path) -> list[Path]:
        into = scratch / "built"
        for project in projects:
            await self._pip(scratch, "wheel", "--no-deps", "--wheel-dir", str(into), str(project))
        return sorted(into.glob("*.whl")) if projects else []

    async def _fetch(self, wanted: Sequence[str], python: str, tags: Sequence[str], into: Path) -> None:
        options = ["--only-binary=:all:", "--implementation", "cp", "--python-version", python, "--dest", str(into)]
        options += [word for tag in tags for word in ("--platform", tag)]
        if any(" --hash=" in each for each in wanted):
            lock = into.parent / "lock.txt"  # pip takes digests from files alone
            lock.write_text("".join(f"{each}\n" for each in wanted if _local(each) is None))
            await self._pip(into.parent, "download", *options, "--no-deps", "--require-hashes", "-r", str(lock))
            for path in filter(None, map(_local, wanted)):
                shutil.copy2(path, into)
        else:
            await self._pip(into.parent, "download", *options, "--", *wanted)
        _pin(into)

    async def _pip(self, scratch: Path, *arguments: str) -> None:
        command = [*await self._found(scratch), *arguments[:1], "--no-input", "--disable-pip-version-check", "--quiet", *arguments[1:]]
        async with deadline(self._limits.wheelhouse_seconds, f"pip {arguments[0]}"):
            code, said = await self._run(command, scratch, TMPDIR=str(scratch))  # what a killed pip leaves goes with it
        if code != 0:
            said, unreachable = _without_retries(said)
            tail = mask_user_info("\n".join(f"  {line}" for line in said.splitlines()[-_TAIL_LINES:]))
            hint = _UNREACHABLE if unreachable else None
            raise TransferError(f"wheels could not be had: pip {arguments[0]} ended with {code}\n{tail}", concerns=arguments[-1], hint=hint)

    async def _found(self, scratch: Path) -> tuple[str, ...]:
        for command in _PIPS:
            if shutil.which(command[0], path=self._environ.get("PATH")) is None:
                continue
            code, _ = await self._run([*command, "--version"], scratch)
            if code == 0:
                return command
        raise UnsupportedError("there is no pip to fetch wheels with", hint="install pip or uv")

    async def _run(self, command: Sequence[str], folder: Path, **variables: str) -> tuple[int, str]:
        """In a folder of our own: where the user stands may be somebody else's tree, with a `pip.py` or a `uv.toml` in it."""
        environ = {**self._environ, "SOURCE_DATE_EPOCH": _EPOCH, "PIP_DISABLE_PIP_VERSION_CHECK": "1", **variables}
        process = await asyncio.create_subprocess_exec(
            *command,
            cwd=folder,
            env=environ,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            out, _ = await process.communicate()
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await shielded(process.wait(), seconds=self._limits.cleanup_seconds, what="the end of pip")
        return process.returncode or 0, out.decode(errors="replace")

    @contextmanager
    def _scratch(self) -> Iterator[Path]:
        folder = self._root / f".{os.getpid()}-{os.urandom(6).hex()}"
        try:
            folder.mkdir(parents=True, mode=0o700)
            yield folder
        except OSError as error:
            raise StorageError(f"wheels can't be written: {error}", concerns=str(folder)) from error
        finally:
            remove_below(None, folder)


def _tags(platform: Platform, libc: str) -> tuple[str, ...]:
    machine = _MACHINES.get(platform.architecture)
    if machine is None or platform.os != "linux" or libc not in _TAGS:
        raise UnsupportedError(f"there are no wheels for {platform} with {libc}", hint="linux/amd64 or linux/arm64, with glibc or musl")
    return tuple(tag.format(machine) for tag in _TAGS[libc])


def _local(requirement: str) -> Path | None:
    """The wheel of this machine that a requirement names."""
    path = Path(re.sub(r"\[[^\]]*\]$", "", requirement))
    return path if path.is_absolute() and path.suffix == ".whl" else None


def _lasting(requirement: str) -> str:
    """A requirement without the place on this machine that its wheel lies at: another state folder's is the same one."""
    path = _local(requirement)
    if path is None:
        return requirement
    try:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise TransferError(f"the wheel {path} is asked for and can't be read: {error.strerror}", concerns=str(path)) from error
    return f"{requirement.removeprefix(f'{path.parent}/')} {digest}"


def _key(requirements: Sequence[str], python: str, tags: Sequence[str], built: Sequence[Path]) -> str:
    described = {
        "requirements": sorted(map(_lasting, requirements)),
        "python": python,
        "tags": list(tags),
        "projects": [hashlib.sha256(path.read_bytes()).hexdigest() for path in built],
    }
    return hashlib.sha256(json.dumps(described, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:32]


def _pin(folder: Path) -> None:
    """Writes down which wheels there are."""
    lines = []
    for path in sorted(folder.glob("*.whl")):
        name, version = path.name.split("-")[:2]
        lines.append(f"{name}=={version} --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}\n")
    (folder / REQUIREMENTS).write_text("".join(lines))


def _without_retries(said: str) -> tuple[str, bool]:
    """What pip said but for its tries of an index that it can't reach, and whether there were any: five long lines that tell one thing."""
    lines = said.splitlines()
    kept = [line for line in lines if not line.startswith(_RETRYING)]
    return "\n".join(kept), len(kept) < len(lines)
