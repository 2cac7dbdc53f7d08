"""Commands and files in the session of the computer's user: what a driver for Linux needs not write itself."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from .faults import fault

READ_BYTES: Final = 64 * 1024
ENDING_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class CommandResult:
    """A command that has ended."""

    exit_code: int | None
    """None when it was ended at its limit."""
    stdout: bytes = b""
    stderr: bytes = b""
    timed_out: bool = False
    truncated: bool = False

    def to_json(self, limit_bytes: int) -> dict[str, Any]:
        """As `computer-exec` answers it."""
        return {
            "exit_code": self.exit_code,
            "stdout": self.stdout[:limit_bytes].decode(errors="replace"),
            "stderr": self.stderr[:limit_bytes].decode(errors="replace"),
            "truncated": self.truncated or len(self.stdout) > limit_bytes or len(self.stderr) > limit_bytes,
            "timed_out": self.timed_out,
        }


async def run_command(
    argv: Sequence[str], cwd: str | None, variables: Mapping[str, str] | None, seconds: float, limit_bytes: int
) -> CommandResult:
    """Runs a command as this process's user, in a process group of its own that ends with it.

    Raises:
        AgentEnvError: `target_unavailable`: there is no such program or folder; `permission_denied`: it may not be run.
    """
    environ = {**os.environ, **(variables or {})}
    pipe = asyncio.subprocess.PIPE
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            cwd=cwd or str(Path.home()),
            env=environ,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=pipe,
            stderr=pipe,
            start_new_session=True,
        )
    except FileNotFoundError as error:
        raise fault("target_unavailable", f"there is no program {argv[0]!r}, or no folder {cwd!r}") from error
    except PermissionError as error:
        raise fault("permission_denied", f"{argv[0]!r} may not be run") from error
    gathered = asyncio.gather(_read(process.stdout, limit_bytes), _read(process.stderr, limit_bytes), process.wait())
    timed_out = False
    try:
        async with asyncio.timeout(seconds):
            await asyncio.shield(gathered)
    except TimeoutError:
        timed_out = True
    finally:
        if timed_out or not gathered.done():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    async with asyncio.timeout(ENDING_SECONDS):
        (stdout, cut), (stderr, cut_too), code = await gathered
    return CommandResult(None if timed_out else code, stdout, stderr, timed_out, cut or cut_too)


async def _read(stream: asyncio.StreamReader | None, limit_bytes: int) -> tuple[bytes, bool]:
    """What comes, up to the limit; the rest is read and forgotten, so that the command isn't held up."""
    kept, cut = bytearray(), False
    while stream is not None and (chunk := await stream.read(READ_BYTES)):
        room = limit_bytes - len(kept)
        kept += chunk[:room]
        cut = cut or len(chunk) > room
    return bytes(kept), cut


def write_files(files: Mapping[str, bytes]) -> None:
    """Writes files below the home of this process's user, all or none of them being refused first.

    Raises:
        AgentEnvError: `invalid_argument`: a path leads out of the home.
    """
    home = Path.home().resolve()
    targets = {home / path: content for path, content in files.items()}
    for target in targets:
        if not target.parent.resolve().is_relative_to(home) or target.is_symlink():
            raise fault("invalid_argument", f"{target.relative_to(home)} leads out of the home")
    for target, content in targets.items():
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)


def files_below(paths: Sequence[str]) -> list[tuple[str, Path]]:
    """Every file below these paths of the home, by its path there; links that lead out of it are left out."""
    home = Path.home().resolve()
    found: dict[str, Path] = {}
    for path in paths:
        root = home / path
        for file in sorted(root.rglob("*")) if root.is_dir() else [root]:
            if file.is_file() and file.resolve().is_relative_to(home):
                found[file.relative_to(home).as_posix()] = file
    return list(found.items())
