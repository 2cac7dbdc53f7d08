"""The provider under test as the configuration wants it, made the same way here and in another process."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_env.sandboxes.configured import recipe
from agent_env.sandboxes.conformance.bench import Subject
from agent_env.sandboxes.registry import provider

if TYPE_CHECKING:
    from agent_env.config import Config
    from agent_env.sandboxes.contract import Provider


def subject_of(
    name: str,
    config: Config,
    state_root: Path,
    *,
    mode: str | None = None,
    image: str | None = None,
    setting: Mapping[str, Any] | None = None,
) -> Subject:
    """A provider by name, with records of its own: what the kit makes stands in nobody's run database.

    Args:
        name: As `registry.provider`.
        config: Whose table for that name counts.
        state_root: Where the provider keeps its records.
        mode: `vm` or `container`; None lets the provider's shape decide.
        image: What containers are made of.
        setting: Fields of `SandboxSpec` that differ from the kit's own.

    Raises:
        UserError: There is no such provider, or its options are wrong.
    """
    impl, options = recipe(name, config)

    def make() -> Provider:
        return provider(name, state_root=state_root, limits=config.limits, options=options, impl=impl)

    make()
    told = {"name": name, "state_root": str(state_root), "options": options, "impl": impl}
    return Subject(name, make, mode=mode, image=image, recipe=told, setting=setting)
