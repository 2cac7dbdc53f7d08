"""A provider as the configuration wants it: `[sandbox.providers.<name>]`, with its references resolved."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from agent_env.config.checks import is_reference
from agent_env.sandboxes.contract import AsksRegistries
from agent_env.sandboxes.registry import provider

if TYPE_CHECKING:
    from agent_env.config import Config
    from agent_env.images import Keyring
    from agent_env.sandboxes.contract import Provider


def configured(
    name: str, config: Config, *, further: Mapping[str, object] | None = None, seen: Callable[[str], object] | None = None
) -> Provider:
    """The provider of that name.

    Args:
        name: As documents and configuration spell it.
        config: Whose table for that name counts.
        further: Options beside those of the table, which they beat.
        seen: Told every secret among the options, so that it can be redacted.

    Raises:
        UserError: As `registry.provider`; also a reference without a value.
    """
    impl, options = recipe(name, config, seen=seen)
    made = provider(name, state_root=config.state_root, limits=config.limits, options={**options, **(further or {})}, impl=impl)

    def keyring() -> Keyring:
        from agent_env.images.opening import keyring_of

        return keyring_of(config, environ=os.environ, seen=seen)

    if isinstance(made, AsksRegistries):
        made.ask_as(keyring)
    return made


def recipe(name: str, config: Config, *, seen: Callable[[str], object] | None = None) -> tuple[str | None, dict[str, Any]]:
    """What the configuration says of a provider: its `impl`, and its options with `env:` and `secret:` references resolved.

    Raises:
        NotFoundError: A reference without a value.
    """
    table = config.sandbox.providers.get(name, {})
    return table.get("impl"), {key: _resolved(value, config, seen) for key, value in table.get("config", {}).items()}


def _resolved(value: Any, config: Config, seen: Callable[[str], object] | None) -> Any:
    """References anywhere in a value, replaced."""
    match value:
        case dict():
            return {key: _resolved(below, config, seen) for key, below in value.items()}
        case list():
            return [_resolved(below, config, seen) for below in value]
    if not is_reference(value):
        return value
    from agent_env.stores.opening import SECRETS_FILE
    from agent_env.stores.secrets import Secrets

    return Secrets(config.state_root / SECRETS_FILE, seen=seen).resolve(value).reveal()
