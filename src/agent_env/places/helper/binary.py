"""Where the helper's committed binaries are."""

from __future__ import annotations

import platform
from pathlib import Path

from agent_env.errors import UnsupportedError

_FOLDER = Path(__file__).parent / "bin"
_ARCHITECTURES = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}


def binary_path(architecture: str | None = None) -> Path:
    """The helper for an architecture, such as `x86_64` or `arm64`; None is this machine's.

    Raises:
        UnsupportedError: There is none for it.
    """
    machine = (architecture or platform.machine()).lower()
    if machine not in _ARCHITECTURES:
        raise UnsupportedError(f"there is no helper for the architecture {machine!r}", hint="x86_64 and aarch64 are built")
    return _FOLDER / f"agentenv-helper-{_ARCHITECTURES[machine]}"
