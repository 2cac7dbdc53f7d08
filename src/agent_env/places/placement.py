"""Where a step acts: the only table, keyed by target and deed.

The answer depends on what was *recorded at deploy* and on the provider's shape, never on how a handle was reopened. It is a value that
names one place; `engine` turns it into the live place. Nothing here touches the world.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from agent_env.errors import PlacementError


class TargetKind(StrEnum):
    """What a step names."""

    SANDBOX = "sandbox_name"
    AGENT = "agent_name"
    ENVIRONMENT = "env_id"
    CONTAINER = "container_name"


class Deed(StrEnum):
    """What it wants to do there."""

    RUN_CODE = "run_code"
    LOAD = "load"
    VERIFY = "verify"
    COLLECT = "collect"


class Recorded(StrEnum):
    """What the deploying step recorded, a fact of its own."""

    VM = "vm"
    CONTAINER = "container"
    IN_CONTAINER = "in_container"
    ON_MACHINE = "on_machine"
    STARTED_HERE = "started_here"
    """A container that a step of this run started."""
    ANY = "any"


class Shape(StrEnum):
    """What a provider gives: a machine with an engine on it, or a sandbox that *is* the container."""

    MACHINE_BACKED = "machine_backed"
    CONTAINER_SHAPED = "container_shaped"


class Where(StrEnum):
    """The one place."""

    MACHINE = "machine"
    ITS_CONTAINER = "its_container"
    """The container that was recorded for the target, by id."""
    SANDBOX_ITSELF = "sandbox_itself"
    """The provider's sandbox is the container."""
    SERVER_CONTAINER = "server_container"
    """The named server's container of an environment."""
    ENVIRONMENT_CONTAINER = "environment_container"
    """The environment's container (a gateway environment: the gateway's)."""
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    target: TargetKind
    deeds: frozenset[Deed]
    recorded: Recorded
    machine_backed: Where
    container_shaped: Where


ANY_DEED = frozenset(Deed)
_FILES = frozenset({Deed.LOAD, Deed.COLLECT, Deed.VERIFY})

TABLE: tuple[Row, ...] = (
    Row(TargetKind.SANDBOX, ANY_DEED, Recorded.VM, Where.MACHINE, Where.REFUSED),
    Row(TargetKind.SANDBOX, ANY_DEED, Recorded.CONTAINER, Where.ITS_CONTAINER, Where.SANDBOX_ITSELF),
    Row(TargetKind.AGENT, ANY_DEED, Recorded.IN_CONTAINER, Where.ITS_CONTAINER, Where.SANDBOX_ITSELF),
    Row(TargetKind.AGENT, ANY_DEED, Recorded.ON_MACHINE, Where.MACHINE, Where.REFUSED),
    Row(TargetKind.ENVIRONMENT, frozenset({Deed.RUN_CODE}), Recorded.ANY, Where.MACHINE, Where.ENVIRONMENT_CONTAINER),
    Row(TargetKind.ENVIRONMENT, _FILES, Recorded.ANY, Where.SERVER_CONTAINER, Where.SERVER_CONTAINER),
    Row(TargetKind.CONTAINER, ANY_DEED, Recorded.STARTED_HERE, Where.ITS_CONTAINER, Where.REFUSED),
)


def place_of(target: TargetKind, deed: Deed, recorded: Recorded, shape: Shape) -> Where:
    """Looks the place up.

    Raises:
        PlacementError: No row, or the row refuses it; the message says what was asked and what was recorded.
    """
    for row in TABLE:
        if row.target is target and deed in row.deeds and row.recorded in (recorded, Recorded.ANY):
            where = row.machine_backed if shape is Shape.MACHINE_BACKED else row.container_shaped
            if where is not Where.REFUSED:
                return where
            break
    raise PlacementError(
        f"{deed} on {target} has no place: it was recorded as {recorded!s} and its provider is {shape.replace('_', '-')}",
        hint="see the placement table in docs/concepts.md",
    )
