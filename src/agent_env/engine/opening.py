"""Opens an engine over the memory and the providers that a configuration names."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from agent_env.artifacts import Artifacts
from agent_env.engine.engine import Engine
from agent_env.engine.options import Stores
from agent_env.engine.teardown import DEFAULT_PROVIDER
from agent_env.redaction import Redactor
from agent_env.sandboxes.configured import configured
from agent_env.steps.registry import configure
from agent_env.stores.opening import open_memory

if TYPE_CHECKING:
    from agent_env.config import Config
    from agent_env.sandboxes.contract import Provider

UNSAFE_HOST = "unsafe_host"
PERMITTED = "permitted"
"""The option by which its provider learns whether the user asked for it."""


@asynccontextmanager
async def open_engine(config: Config) -> AsyncIterator[Engine]:
    """The engine of an installation. Closing it lets go; what runs in sandboxes goes on.

    Raises:
        StorageError: The run database can't be reached or used.
    """
    config = replace(config, sandbox=replace(config.sandbox, default=default_provider_of(config)))
    configure(config.get("task_steps.impls"))
    redactor = Redactor()
    with open_memory(config, seen=redactor.add) as memory:
        artifacts = Artifacts(memory.documents, memory.objects)
        stores = Stores(memory.db, memory.documents, memory.objects, memory.journal, memory.secrets, artifacts)
        async with Engine(stores, providers_of(config, seen=redactor.add), config=config, redactor=redactor) as engine:
            yield engine


def default_provider_of(config: Config) -> str:
    """The chain of providers for steps that name none; the user's word for the bare host beats the built-in default."""
    named = config.sandbox.default or DEFAULT_PROVIDER
    return UNSAFE_HOST if config.sandbox.unsafe_host and named == DEFAULT_PROVIDER else named


def providers_of(config: Config, *, seen: Callable[[str], object] | None = None) -> Callable[[str], Provider]:
    """Name → provider, with the options that the configuration gives it.

    Args:
        config: Whose `[sandbox.providers.<name>]` counts.
        seen: Told every secret among the options, so that it can be redacted.
    """

    def make(name: str) -> Provider:
        # Documents name providers, and documents are other people's: only this user's own word counts.
        further = {PERMITTED: config.sandbox.unsafe_host} if name == UNSAFE_HOST else {}
        return configured(name, config, further=further, seen=seen)

    return make
