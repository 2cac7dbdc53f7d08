"""Platforms of images: one spelling for each, and what a machine can run."""

from __future__ import annotations

import platform as machine
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from agent_env.errors import UserError

ARCHITECTURES = {"x86_64": "amd64", "x86-64": "amd64", "aarch64": "arm64", "i386": "386", "i686": "386", "armhf": "arm", "armv7l": "arm"}
"""Other spellings → the one that images use."""
_ALSO_RUNS = {"amd64": frozenset({"386"}), "arm64": frozenset({"arm"})}
"""Architecture → others that its processors run by themselves."""
_EMULATORS = {"qemu-aarch64": "arm64", "qemu-x86_64": "amd64", "qemu-arm": "arm", "qemu-i386": "386", "qemu-riscv64": "riscv64"}
_BINFMT = Path("/proc/sys/fs/binfmt_misc")
_WORD = re.compile(r"[a-z0-9][a-z0-9_.]*")


@dataclass(frozen=True, slots=True)
class Platform:
    """An operating system and an architecture, such as `linux/amd64`."""

    os: str = "linux"
    architecture: str = "amd64"
    variant: str | None = None
    """Only of 32-bit arm, where it decides what runs (reference)."""

    @classmethod
    def parse(cls, text: str) -> Platform:
        """Reads `os/architecture[/variant]`, or an architecture alone, in any of the usual spellings.

        Raises:
            UserError: It is none.
        """
        parts = text.strip().lower().split("/")
        if len(parts) == 1:
            parts = ["linux", *parts]
        if len(parts) > 3 or not all(map(_WORD.fullmatch, parts)):
            raise UserError(f"{text!r} is no platform", hint="write os/architecture, such as linux/amd64")
        return cls.of(*parts)

    @classmethod
    def of(cls, os: str, architecture: str, variant: str | None = None) -> Platform:
        """The platform of an image's own words for it."""
        name = ARCHITECTURES.get(architecture.lower(), architecture.lower())
        return cls(os.lower() or "linux", name, (variant or None) if name == "arm" else None)

    @classmethod
    def here(cls) -> Platform:
        """This machine's, for Linux images (elsewhere an engine runs them in a machine of the same architecture)."""
        return cls.of("linux", machine.machine() or "amd64")

    def runs_on(self, host: Platform, emulated: Collection[str] = ()) -> bool:
        """A machine of platform `host` runs such an image, by itself or through an emulator for one of `emulated` architectures."""
        if self.os != host.os:
            return False
        own = {host.architecture} | _ALSO_RUNS.get(host.architecture, frozenset())
        return self.architecture in own or self.architecture in emulated

    def __str__(self) -> str:
        return "/".join(filter(None, (self.os, self.architecture, self.variant)))


EMULATED = Platform("linux", "amd64")
"""What is tried where an image has nothing for this machine, and the machine emulates it (reference)."""


def normalize_platform(text: str | None) -> str | None:
    """One spelling for each platform; None stays None, which means whatever the machine is."""
    return None if text is None else str(Platform.parse(text))


def emulated_architectures(folder: Path = _BINFMT) -> frozenset[str]:
    """Architectures that this machine's kernel hands to an emulator."""
    found = set()
    for name, architecture in _EMULATORS.items():
        try:
            enabled = (folder / name).read_text().startswith("enabled")
        except OSError:
            continue
        if enabled:
            found.add(architecture)
    return frozenset(found)
