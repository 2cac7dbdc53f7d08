"""What configuration may say about the provider `rootfs`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from agent_env.sandboxes.confined import options


@dataclass(frozen=True, slots=True)
class Options(options.Options):
    """The options."""

    choices: ClassVar[Mapping[str, tuple[object, ...]]] = {
        **options.Options.choices,
        "root": ("auto", "overlay", "copy"),
        "read_only": (True, False),
    }

    root: str = "auto"
    """`overlay` refuses to copy; `copy` always copies; `auto` copies where this machine can't stack file systems."""
    read_only: bool = False
    """The image's files can't be written; its volumes, and what is mounted (`/dev/shm`), can."""
