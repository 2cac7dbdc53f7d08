"""A task author's own shell text, run in a place. It is one argument of `bash -c`, or a private file when it is too long for that."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import PurePosixPath

from agent_env.defaults import KIB
from agent_env.errors import InfrastructureError, LaunchError, TransportLostError
from agent_env.places import Command, Completed, Ending, Place, Upload
from agent_env.steps.contract import Run
from agent_env.waiting import shielded

OUTPUT_BYTES = 64 * KIB
"""How much of a command's output is kept."""
_LONGEST_ARGUMENT_BYTES = 100 * KIB
"""Kernels refuse arguments from 128 KiB."""
_STAGING = PurePosixPath("/tmp/agent_env_verify")


async def run_shell(run: Run, place: Place, text: str, *, cwd: PurePosixPath, timeout_seconds: float, what: str) -> Completed:
    """Runs shell text as the place's own user. Nothing of it runs on after its time limit.

    Args:
        run: The attempt that it belongs to.
        place: Where.
        text: The author's text, byte for byte.
        cwd: Its working directory.
        timeout_seconds: Its limit.
        what: What it is called in errors.

    Raises:
        LaunchError: It could not be started: no bash, no such folder.
        InfrastructureError: A limit of the whole place was reached: who used it up can't be told, so the command is not judged by it.
        TransportLostError: Its outcome is not known.
    """
    async with _arguments(run, place, text) as argv:
        command = Command(argv, cwd=cwd, timeout_seconds=timeout_seconds, output_limit_bytes=OUTPUT_BYTES, attempt=run.attempt_id)
        try:
            completed = await place.run(command)
        except LaunchError as error:
            message = f"{what} could not be started with bash in {cwd}: {error.message}"
            hint = error.hint or "it needs bash in the place, and its working directory must exist"
            raise LaunchError(message, concerns=place.id, hint=hint) from error
    if completed.ending is Ending.LIMITED:
        raise InfrastructureError(f"{what} could not be judged: {completed.detail}", concerns=place.id)
    if completed.ending is Ending.LOST:
        raise TransportLostError(f"the outcome of {what} was lost: {completed.detail or 'the connection broke'}", concerns=place.id)
    return completed


@asynccontextmanager
async def _arguments(run: Run, place: Place, text: str) -> AsyncIterator[list[str]]:
    if len(text.encode()) <= _LONGEST_ARGUMENT_BYTES:
        yield ["bash", "-c", text]
        return
    folder = _STAGING.with_name(f"{_STAGING.name}-{run.attempt_id}")
    script = folder / "command.sh"
    await place.put([Upload(folder, None, 0o700), Upload(script, text.encode(), 0o600)])
    try:
        yield ["bash", str(script)]
    finally:
        with suppress(InfrastructureError):  # the verdict stands; what is left goes with the sandbox
            await shielded(place.remove([folder]), seconds=run.limits.cleanup_seconds, what="removing a staged command")
