"""A command as the helper is asked to run it."""

from __future__ import annotations

import resource
from functools import lru_cache

from agent_env.places.helper import protocol
from agent_env.places.helper.protocol import ExecFlag, Key
from agent_env.places.place import RESULT_VARIABLE, Command

_RESULT_DESCRIPTOR = 3


def request_of(
    command: Command,
    *,
    timeout_seconds: float,
    grace_seconds: float,
    limit_bytes: int,
    streaming: bool = False,
    rejoin: int = 0,
) -> bytes:
    """The payload of its EXEC frame.

    Args:
        command: The command.
        timeout_seconds: When it is ended.
        grace_seconds: How long it may take to end when it is asked to.
        limit_bytes: How much of each output stream is wanted at the most, where its beginning is.
        streaming: Its output is read while it runs, and its input is open.
        rejoin: By which it is gone on with over another connection; 0 for never.
    """
    flags = (ExecFlag.STARTED if streaming else 0) | (ExecFlag.STDIN if command.stdin is not None or streaming else 0)
    flags |= ExecFlag.RESULT if command.result_limit_bytes is not None else 0
    limited = command.keep != "tail" and not (streaming and command.output_limit_bytes is None)
    numbers = _numbers(timeout_seconds, grace_seconds, flags, limit_bytes if limited else None)
    pairs = [(Key.ARG, protocol.raw(argument)) for argument in command.argv]
    pairs += [*protocol.environment(command.env), *protocol.environment(command.secrets)]
    if command.result_limit_bytes is not None:
        pairs += protocol.environment({RESULT_VARIABLE: str(_RESULT_DESCRIPTOR)})
    for which, most in command.rlimits.items():
        # One second between the signal and the kill: with both at once the kernel says only that it killed.
        hard = most + 1 if which == resource.RLIMIT_CPU else most
        pairs.append((Key.RLIMIT, protocol.RLIMIT.pack(which, most, hard)))
    if rejoin:
        pairs.append((Key.REJOIN, protocol.u64(rejoin)))
    for key, value in ((Key.CWD, command.cwd), (Key.USER, command.user), (Key.ATTEMPT, command.attempt)):
        if value is not None:
            pairs.append((key, protocol.raw(value)))
    return protocol.fields(*pairs) + numbers


@lru_cache(maxsize=64)
def _numbers(timeout_seconds: float, grace_seconds: float, flags: int, limit_bytes: int | None) -> bytes:
    """What most commands of a run have in common."""
    limit = [] if limit_bytes is None else [(key, protocol.u64(limit_bytes)) for key in (Key.LIMIT_OUT, Key.LIMIT_ERR)]
    return protocol.fields(
        (Key.TIMEOUT_MS, protocol.milliseconds(timeout_seconds)),
        (Key.GRACE_MS, protocol.u64(grace_seconds * 1000)),
        (Key.WINDOW, protocol.u64(protocol.OUT_WINDOW)),
        (Key.FLAGS, protocol.u64(flags)),
        *limit,
    )
