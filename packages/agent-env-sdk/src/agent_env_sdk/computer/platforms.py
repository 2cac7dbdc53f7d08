"""The platforms that a driver supports, and the one that it runs on."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any, Final

_ARCHITECTURES: Final = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}
_SYSTEMS: Final = {"linux": "linux", "darwin": "macos", "win32": "windows"}


@dataclass(frozen=True, slots=True)
class Platform:
    """What a computer runs on; None for what isn't said."""

    os: str | None = None
    distribution: str | None = None
    version: str | None = None
    arch: str | None = None
    display: str | None = None

    def to_json(self) -> dict[str, str]:
        """What is said of it."""
        return {key: value for key, value in asdict(self).items() if value is not None}

    @classmethod
    def here(cls) -> Platform:
        """The platform of this process."""
        system = _SYSTEMS.get(sys.platform, sys.platform)
        machine = platform.machine().lower()
        linux = system == "linux"
        release: Mapping[str, str] = {}
        if linux:
            try:
                release = platform.freedesktop_os_release()
            except OSError:
                release = {}
        display = _display(os.environ) if linux else None
        return cls(system, release.get("ID"), release.get("VERSION_ID"), _ARCHITECTURES.get(machine, machine or None), display)


def supported(entry: Mapping[str, Any]) -> Iterator[Platform]:
    """The platforms of one entry of `supports`, such as `{"os": {"type": "linux", "display": ["x11"]}, "arch": ["amd64"]}`.

    Raises:
        ValueError: It names no system.
    """
    system = entry.get("os")
    if not isinstance(system, Mapping) or not isinstance(system.get("type"), str):
        raise ValueError(f"an entry of supports names its system as {{'os': {{'type': ...}}}}, not {entry!r}")
    choices = (
        _listed(system.get("distribution")),
        _listed(system.get("version")),
        _listed(entry.get("arch")),
        _listed(system.get("display")),
    )
    for distribution, version, arch, display in product(*choices):
        yield Platform(system["type"], distribution, version, arch, display)


def _listed(value: Any) -> list[Any]:
    return [None] if value is None else [value] if isinstance(value, str) else list(value)


def _display(environ: Mapping[str, str]) -> str | None:
    session = environ.get("XDG_SESSION_TYPE", "").strip().lower()
    if session in {"x11", "wayland"}:
        return session
    return "x11" if environ.get("DISPLAY") else "wayland" if environ.get("WAYLAND_DISPLAY") else None
