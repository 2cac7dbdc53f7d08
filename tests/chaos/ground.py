"""Where the chaos takes place: on this machine's own sandboxes, or on containers of its engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any

from agent_env.steps.contract import Step
from tests.chaos.steps import KINDS, RESULTS


@dataclass(frozen=True)
class Ground:
    """What differs between the two."""

    name: str
    box: Callable[[bool], dict[str, Any]]
    """The deploy step's fields, of the first run and of the second."""
    further: tuple[dict[str, Any], ...] = ()
    """Steps beyond those of every case."""
    kinds: tuple[type[Step], ...] = KINDS
    results: Mapping[str, Any] = field(default_factory=lambda: RESULTS)
    modules: tuple[str, ...] = ("agent_env.sandboxes.local.provider", "agent_env.verifiers.verify_sandbox")
    """Loaded before the children are forked."""

    @property
    def decoys(self) -> bool:
        """Foreign things stand beside ours, and a keeper is killed too."""
        return self.name == "containers"

    def preload(self, database: str) -> None:
        """Imports what the children need once: they are forked, and their moments are spent on the run instead."""
        postgres = ("sqlalchemy.dialects.postgresql.psycopg", "agent_env.stores.postgres") if database == "postgres" else ()
        for name in (*self.modules, "agent_env.stores.sqlite", *postgres):
            import_module(name)


MACHINES = Ground("machines", lambda _: {"sandbox_mode": "vm", "memory_mb": 256})


@cache
def containers() -> Ground:
    """That of containers, whose modules are loaded only for it."""
    from tests.chaos.containers import COPIED, Copy, box

    return Ground(
        "containers",
        box,
        ({"id": "copy", "type": "c_copy", "depends_on": ["box"]},),
        (*KINDS, Copy),
        {**RESULTS, "copy": COPIED},
        (*MACHINES.modules, "agent_env.containers", "agent_env.images", "agent_env.sandboxes.local.containers"),
    )
