"""Runs Python that a task brought, in a place: staged in a private folder, as root, within limits, and with a JSON value as its result."""

from __future__ import annotations

import asyncio
import hashlib
import re
import shlex
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path, PurePosixPath

from agent_env.documents.reading import parse_json
from agent_env.documents.updates import Json, SetMetadata
from agent_env.errors import (
    AgentEnvError,
    InfrastructureError,
    LaunchError,
    LimitHitError,
    ProblemsError,
    RunCodeExecutionError,
    RunCodeValidationError,
    TransportLostError,
)
from agent_env.ids import fs_safe
from agent_env.places import ROOT_USER, Command, Completed, Ending, Entry, FileKind, Missing, Place, Upload
from agent_env.steps.contract import Run
from agent_env.waiting import shielded

STAGING = PurePosixPath("/tmp/agent_env_run_code")
"""Holds one private folder for each attempt."""
_ROOT = "0:0"


@dataclass(frozen=True, slots=True)
class PythonCode:
    """One call of one function."""

    step_id: str
    label: str
    """What messages call it."""
    files: Mapping[str, bytes | Path]
    """What is staged: relative name → content; `input.json` is what the function is called with."""
    entry: str
    """The file that has the function."""
    entrypoint: str
    """The function; an `async def` is awaited."""
    seconds: float
    """Its limit: then its processes are told to end, and killed after a grace time."""
    named: Mapping[str, str] = field(default_factory=dict)
    """Staged name → the name that its author gave the file, where that is another: by it, messages and tracebacks tell of the file."""

    async def run(self, place: Place, run: Run) -> tuple[Json, Completed]:
        """Stages, runs, reads the result, and removes what was staged, however it ends.

        An error of what ran has what it printed as its evidence. The folder where it was staged, which is gone then, is left out of that.

        Raises:
            RunCodeValidationError: The result breaks a rule.
            RunCodeExecutionError: The script exited with another code than 0, or outlived its limit.
            LaunchError: The place has no python3.
        """
        async with staged(place, run, self.step_id, self.files) as folder:
            digest = await asyncio.to_thread(_digest, self.files)
            completed = _without(await self._run(place, run, [str(folder), self.entrypoint, self.entry, digest]), folder, self.named)
            try:
                told = await self._told(place, run, folder, completed)
                if not completed.ok:
                    raise self._failure(place, run, completed, told)
                return self._result(run, told), completed
            except AgentEnvError as error:
                if log := printed(completed, run.limits.inline_result_bytes):
                    error.evidence = [SetMetadata(("script_logs", self.step_id), log)]
                raise

    async def _run(self, place: Place, run: Run, arguments: Sequence[str]) -> Completed:
        command = Command(
            # Nothing that lies in the place may run before the script: no file that could be replaced, no user's site (see the runner).
            ["python3", "-I", "-c", _runner(), *arguments],
            user=ROOT_USER,
            timeout_seconds=self.seconds,
            output_limit_bytes=run.limits.run_code_stderr_bytes,
            keep="tail",
            attempt=run.attempt_id,
            result_limit_bytes=run.limits.run_code_result_bytes + 1,
        )
        try:
            return await place.run(command)
        except LaunchError as error:
            hint = "it needs python3 (3.9 or newer) in the place"
            message = f"{self.label} could not start python3: {error.message}"
            raise LaunchError(message, concerns=place.id, hint=hint) from error

    async def _told(self, place: Place, run: Run, folder: PurePosixPath, completed: Completed) -> bytes:
        """What the runner had to say: `=` and a result, `!` and a reason, or nothing. Where no helper gives it a pipe, it is in files."""
        if completed.result is not None or completed.ending is not Ending.EXITED:
            return completed.result or b""
        limit = run.limits.run_code_result_bytes
        for mark, name in ((b"=", "output.json"), (b"!", "output.refused")):
            data = await place.read(folder / name, limit_bytes=limit)
            if isinstance(data, bytes):
                return mark + data
            if data.reason == "EFBIG":
                raise RunCodeValidationError(f"{self.label}: result exceeds {limit}-byte cap", concerns=self.step_id)
        return b""

    def _failure(self, place: Place, run: Run, completed: Completed, told: bytes) -> AgentEnvError:
        said = marked(completed.stderr, completed.stderr_dropped_bytes)
        out = marked(completed.stdout, completed.stdout_dropped_bytes)
        words = f": {uncaught(said) or said or out}" if said or out else ""
        hint = f"all that it printed: agent-env runs logs {run.run_id} --step {shlex.quote(self.step_id)}" if uncaught(said) else None
        match completed.ending:
            case Ending.LOST:
                message = f"{self.label}: its outcome was lost: {completed.detail or 'the connection broke'}"
                return TransportLostError(message, concerns=place.id)
            case Ending.TIMED_OUT:
                seen = "".join(f"\n{name}: {text}" for name, text in (("stderr", said), ("stdout", out)) if text)
                return RunCodeExecutionError(f"{self.label}: timed out after {self.seconds:g}s{seen}", concerns=self.step_id)
            case Ending.LIMITED:
                return LimitHitError(f"{self.label}: {completed.detail}{words}", concerns=self.step_id)
            case Ending.SIGNALLED:
                why = f"; {completed.detail}" if completed.detail else ""
                message = f"{self.label}: exited {128 + (completed.signal or 0)} (signal {completed.signal}{why}){words}"
                return RunCodeExecutionError(message, concerns=self.step_id, hint=hint)
        if completed.exit_code == _REFUSED and told.startswith(b"!"):
            reason = told[1:].decode("utf-8", "replace").replace(self.entry, self.named.get(self.entry, self.entry), 1)
            return RunCodeValidationError(f"{self.label}: {reason}", concerns=self.step_id)
        return RunCodeExecutionError(f"{self.label}: exited {completed.exit_code}{words}", concerns=self.step_id, hint=hint)

    def _result(self, run: Run, told: bytes) -> Json:
        limit = run.limits.run_code_result_bytes
        if not told.startswith(b"="):
            why = "the script ended itself (sys.exit) before its entry point returned"
            raise RunCodeValidationError(f"{self.label}: wrote no result file: {why}", concerns=self.step_id)
        data = told[1:]
        if len(data) > limit:
            raise RunCodeValidationError(f"{self.label}: result exceeds {limit}-byte cap", concerns=self.step_id)
        try:
            return parse_json(data, source=f"result of {self.label}")
        except ProblemsError as error:
            raise RunCodeValidationError(f"{self.label}: the result is not JSON: {error}", concerns=self.step_id) from error


_REFUSED = 65
"""The runner's exit code when there can be no result."""


@asynccontextmanager
async def staged(place: Place, run: Run, step_id: str, files: Mapping[str, bytes | Path]) -> AsyncIterator[PurePosixPath]:
    """Stages files in a private folder of this attempt alone, and removes it when the block ends, however it ends.

    What earlier attempts of the step left behind (a killed process of ours could not clean up) is stopped and removed first, so that it
    can neither be read nor write.
    """
    folder = STAGING / f"{fs_safe(step_id)}-{run.attempt_id}"
    await _clear(place, fs_safe(step_id))
    uploads = [Upload(STAGING, None, 0o700), Upload(folder, None, 0o700)]
    uploads += [Upload(folder / name, source, 0o600) for name, source in files.items()]
    try:
        await place.put(uploads, owner=_ROOT)
        yield folder
    finally:
        with suppress(InfrastructureError):  # the script's own ending is what counts; what is left goes with the sandbox
            await shielded(place.remove([folder]), seconds=run.limits.cleanup_seconds, what="removing a staged script")


async def _clear(place: Place, step: str) -> None:
    """Removes leftovers of a step's earlier attempts; also a staging folder that somebody else could write to."""
    found = (await place.stat([STAGING], follow=False))[STAGING]
    if isinstance(found, Missing):
        return
    if not _is_private(found):
        await place.remove([STAGING])
        return
    closed: list[Missing] = []  # folders that a script closed to everyone: they need not be looked into to be removed
    left = [entry.path async for entry in place.walk(STAGING, unreadable=closed.append) if entry.path.parent == STAGING]
    for path in left:
        head, separator, tail = path.name.rpartition("-att-")
        if separator and head == step:
            await place.stop_attempt(f"att-{tail}")
            await place.remove([path])


def _is_private(entry: Entry) -> bool:
    return entry.kind is FileKind.DIRECTORY and entry.uid == 0 and entry.mode & 0o077 == 0


@cache
def _runner() -> str:
    return Path(__file__).with_name("run_code_runner.py").read_text(encoding="utf-8")


def _digest(files: Mapping[str, bytes | Path]) -> str:
    """As the runner computes it over what it finds staged."""
    whole = hashlib.sha256()
    for name in sorted(files):
        source = files[name]
        data = source if isinstance(source, bytes) else source.read_bytes()
        whole.update(f"{len(name.encode())} {len(data)} ".encode() + name.encode() + data)
    return whole.hexdigest()


_FRAME = re.compile(r"  File \"(?P<file>.*)\", (?P<line>line \d+)")


def uncaught(said: str) -> str:
    """What an interpreter told of an uncaught error, without the way there: where among what was staged it was met, and the error itself.

    Empty where it told of none.
    """
    lines, first, where, inside = said.splitlines(), 0, "", False
    for number, line in enumerate(lines):
        if frame := _FRAME.match(line):
            where, inside = "" if not inside else where, True
            if not frame["file"].startswith(("/", "<")):
                where = f"{frame['file']}, {frame['line']}: "
        elif inside and line and not line.startswith("  "):
            first, inside = number, False
    return where + "\n".join(lines[first:]) if first and not inside else ""


def printed(completed: Completed, limit: int) -> dict[str, Json]:
    """The ends of what a script printed, of either stream at most `limit` bytes. Nothing when it printed nothing."""
    streams = {
        "stdout": (completed.stdout, completed.stdout_dropped_bytes),
        "stderr": (completed.stderr, completed.stderr_dropped_bytes),
    }
    return {name: marked(output[-limit:], dropped + max(len(output) - limit, 0)) for name, (output, dropped) in streams.items() if output}


def _without(completed: Completed, folder: PurePosixPath, named: Mapping[str, str]) -> Completed:
    """The same with staged files by the names alone that their author gave them."""

    def by_name(output: bytes) -> bytes:
        for staged_as, name in named.items():
            output = output.replace(f'"{folder}/{staged_as}"'.encode(), f'"{name}"'.encode())
        return output.replace(f"{folder}/".encode(), b"")

    return replace(completed, stdout=by_name(completed.stdout), stderr=by_name(completed.stderr))


def marked(output: bytes, dropped: int) -> str:
    text = output.decode("utf-8", "replace").strip()
    return f"[{dropped} bytes before this were cut] {text}" if dropped else text
