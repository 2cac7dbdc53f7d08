"""A server written with our SDK: `python -m tests.gateway.sdk_server PORT`."""

from __future__ import annotations

import sys
from typing import Annotated, Any

from agent_env_sdk.environment import (
    AgentEnvError,
    DataPart,
    Environment,
    ToolContext,
    add_data,
    environment,
    extension,
    get_data,
    load_json,
    reset_data,
    serve,
    tool,
)
from pydantic import Field


@environment(name="stock")
class Stock(Environment):
    def __init__(self) -> None:
        self.items: dict[str, dict[str, Any]] = {}
        self.frozen = False

    @reset_data
    async def wipe(self) -> None:
        self.items.clear()

    @add_data
    async def fill(self, parts: list[Any]) -> None:
        for part in parts:
            self.items |= {row["sku"]: row for row in (await load_json(part))["items"]}

    @get_data
    async def dump(self) -> list[DataPart]:
        return [DataPart(data={"items": sorted(self.items.values(), key=lambda row: row["sku"])})]

    @tool(name="{environment_name}_count", annotations={"readOnlyHint": True})
    def count(self, sku: Annotated[str, Field(description="Stock keeping unit.")]) -> int:
        """Units on hand."""
        return int(self.items.get(sku, {}).get("qty", 0))

    @tool(name="{environment_name}_take")
    def take(self, sku: str, who: ToolContext) -> str:
        """Remove one unit."""
        if self.frozen or self.items.get(sku, {}).get("qty", 0) < 1:
            raise AgentEnvError("insufficient", f"{who.caller.role or 'someone'} can't take {sku}")
        self.items[sku]["qty"] -= 1
        return f"taken by {who.caller.role} in {who.caller.session}"

    @tool(name="{environment_name}_recount", hidden_by_default=True)
    async def recount(self, who: ToolContext) -> str:
        """Counts all, slowly."""
        for step in (1, 2, 3):
            await who.progress(step, 3, "counting")
        return "counted"

    @extension("urn:agentenv:set-frozen/v1", description="Refuse removals.")
    async def set_frozen(self, on: bool) -> dict[str, bool]:
        self.frozen = on
        return {"frozen": on}


if __name__ == "__main__":
    serve(Stock(), "127.0.0.1", int(sys.argv[1]))
