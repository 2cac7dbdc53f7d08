"""What configuration may say about the provider `local`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from agent_env.sandboxes.confined import options

DEFAULT_IMAGE = "python:3.13-bookworm"
"""(Docker's official image) A Debian with bash, curl, git and Python: what tasks expect of a machine."""


@dataclass(frozen=True, slots=True)
class Options(options.Options):
    """The options."""

    choices: ClassVar[Mapping[str, tuple[object, ...]]] = {
        **options.Options.choices,
        "confiner": ("auto", "bwrap", "helper"),
        "isolation": ("auto", "namespaces", "container"),
    }
    texts: ClassVar[Mapping[str, str]] = {"machine_image": DEFAULT_IMAGE}

    confiner: str = "auto"
    """`auto`, `bwrap` or `helper`."""
    isolation: str = "auto"
    """`container` has one play the machine, `auto` where nothing can be confined and an engine answers, `namespaces` never."""
    machine_image: str = DEFAULT_IMAGE
    """What a container that plays the machine is made of."""
