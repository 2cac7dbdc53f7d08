"""Tickets: opened, listed, closed; stamped with the office's own time."""

from __future__ import annotations

import json
from typing import Annotated, Any

from agent_env_sdk.environment import (
    AgentEnvError,
    DataPart,
    Environment,
    ToolContext,
    add_data,
    atomic,
    environment,
    extension,
    get_data,
    read_json,
    reset_data,
    tool,
)
from pydantic import Field

Number = Annotated[int, Field(description="The ticket's number.")]


@environment(name="tickets")
class Tickets(Environment):
    """Tickets by number."""

    follows_clock = True

    def __init__(self) -> None:
        self.tickets: dict[int, dict[str, Any]] = {}
        self.frozen = False

    @reset_data
    def empty(self) -> None:
        """No tickets."""
        self.tickets.clear()

    @add_data
    def load(self, parts: list[Any]) -> None:
        """Takes {"tickets": [{"number", "title", "priority", "open", "by", "at"}]}."""
        with atomic(self, "tickets"):
            for part in parts:
                self.tickets |= {int(row["number"]): dict(row) for row in read_json(part)["tickets"]}

    @get_data
    def export(self) -> list[DataPart]:
        """Gives what `load` takes."""
        return [DataPart(data={"tickets": [self.tickets[number] for number in sorted(self.tickets)]})]

    @extension("urn:agentenv:set-frozen/v1", description="Whether tickets can be opened and closed.")
    def set_frozen(self, on: bool) -> dict[str, bool]:
        """Freezes or thaws."""
        self.frozen = on
        return {"frozen": on}

    @tool(name="{environment_name}_open")
    def open(
        self,
        title: Annotated[str, Field(description="What it is about.")],
        who: ToolContext,
        priority: Annotated[int, Field(description="1 is urgent.", ge=1, le=5)] = 3,
    ) -> str:
        """Open a ticket. Returns its number."""
        self._check_thawed()
        number = max(self.tickets, default=0) + 1
        at = self.now().isoformat(timespec="seconds")
        self.tickets[number] = {"number": number, "title": title, "priority": priority, "open": True, "by": who.role or "staff", "at": at}
        return str(number)

    @tool(name="{environment_name}_list", annotations={"readOnlyHint": True})
    def list(self, only_open: Annotated[bool, Field(description="Leave closed ones out.")] = False) -> str:
        """List tickets as JSON, by number."""
        return json.dumps([each for _, each in sorted(self.tickets.items()) if each["open"] or not only_open])

    @tool(name="{environment_name}_close")
    def close(self, number: Number) -> str:
        """Close a ticket."""
        self._check_thawed()
        if number not in self.tickets:
            raise AgentEnvError("missing", f"there is no ticket {number}")
        self.tickets[number]["open"] = False
        return "closed"

    @tool(name="{environment_name}_purge", hidden_by_default=True)
    def purge(self) -> str:
        """Forget every ticket."""
        self.tickets.clear()
        return "purged"

    def _check_thawed(self) -> None:
        if self.frozen:
            raise AgentEnvError("frozen", "tickets are frozen for now", retryable=True, applied="no")


if __name__ == "__main__":
    Tickets().serve()
