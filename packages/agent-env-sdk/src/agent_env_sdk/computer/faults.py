"""The errors of a computer: codes that callers compare, each with its status and whether the input may have arrived."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from agent_env_sdk.wire.errors import AgentEnvError, Applied

FAULTS: Final[Mapping[str, tuple[int, Applied, bool]]] = {
    "invalid_argument": (400, "no", False),
    "out_of_bounds": (400, "no", False),
    "stale_frame": (409, "no", False),
    "input_busy": (409, "no", True),
    "permission_denied": (403, "no", False),
    "unsupported": (501, "no", False),
    "background_unavailable": (501, "no", False),
    "target_unavailable": (404, "no", False),
    "device_unavailable": (503, "no", True),
    "limit_exceeded": (429, "no", True),
    "timeout": (504, "unknown", False),
    "delivery_failed": (502, "unknown", False),
    "internal": (500, "unknown", False),
}
"""By code: the HTTP status, whether the effect happened, and whether the same call may succeed later."""


def fault(code: str, message: str, *, hint: str | None = None) -> AgentEnvError:
    """An error of a computer.

    Args:
        code: One of `FAULTS`.
        message: What went wrong, for whoever called.
        hint: What the caller can do about it.
    """
    status, applied, retryable = FAULTS[code]
    return AgentEnvError(code, message, status=status, applied=applied, retryable=retryable, hint=hint)


def within(name: str, value: float, low: float, high: float) -> None:
    """Refuses a number outside of its range.

    Raises:
        AgentEnvError: `invalid_argument`.
    """
    if not low <= value <= high:
        raise fault("invalid_argument", f"{name} must lie between {low:g} and {high:g} on this computer, not {value:g}")
