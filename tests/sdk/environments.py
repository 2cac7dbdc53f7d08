"""Environments that the tests serve: one that uses everything, and small ones with one peculiarity each."""

from __future__ import annotations

import asyncio
import datetime as dt
import enum
import threading
import uuid
from decimal import Decimal
from typing import Annotated, Any, Literal

from agent_env_sdk.environment import (
    AgentEnvError,
    DataPart,
    Environment,
    Image,
    IntakeDeclaration,
    IntakeFormat,
    LoadContext,
    TextPart,
    ToolContext,
    ToolResult,
    WriteNamespaceGrant,
    add_data,
    atomic,
    environment,
    extension,
    get_data,
    give,
    read_json,
    reset_data,
    tool,
)
from agent_env_sdk.wire.manifest import Entity, InterfaceManifest, Operation
from pydantic import BaseModel, Field

Sku = Annotated[str, Field(description="Stock keeping unit.")]


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Item(BaseModel):
    """What lies on a shelf."""

    sku: str
    qty: int


@environment(name="stock")
class Stock(Environment):
    """A stock room: seeded with items, with tools of every kind."""

    tool_access = True
    follows_clock = True

    def __init__(self) -> None:
        self.items: dict[str, dict[str, Any]] = {}
        self.entered = threading.Event()
        self.go_on = threading.Event()

    @reset_data
    def wipe(self) -> None:
        self.items.clear()

    @add_data
    def fill(self, parts: list[Any], load: LoadContext) -> None:
        with atomic(self, "items"):
            rows = [row for part in parts for row in read_json(part)["items"]]
            for done, row in enumerate(rows):
                load.tell(done, len(rows), row["sku"])
                if row["sku"] == "held":
                    self.entered.set()
                    self.go_on.wait(30)
                self.items[row["sku"]] = {"sku": row["sku"], "qty": int(row["qty"])}

    @get_data
    async def dump(self, write_namespace: WriteNamespaceGrant | None) -> list[Any]:
        whole = {"items": sorted(self.items.values(), key=lambda row: row["sku"])}
        if write_namespace is not None:
            part = await give(write_namespace, "stock/items.json", repr(whole).encode(), name="items.json", mime_type="application/json")
            if part is not None:
                return [part]
        return [DataPart(data=whole)]

    @tool(name="{environment_name}_count", annotations={"readOnlyHint": True}, title="Count", meta={"x.test/kind": "read"})
    def count(self, sku: Sku) -> int:
        """Units on hand."""
        return int(self.items.get(sku, {}).get("qty", 0))

    @tool(name="{environment_name}_take")
    async def take(self, sku: Sku, qty: Annotated[int, Field(description="Units to remove.")], who: ToolContext) -> str:
        """Remove units."""
        if self.count(sku) < qty:
            raise AgentEnvError("insufficient", f"{who.role or 'someone'} can't take {qty} of {sku}", hint="count first")
        self.items[sku]["qty"] -= qty
        return "taken"

    @tool(hidden_by_default=True)
    def audit(self) -> str:
        """Plumbing that agents don't see."""
        return "audited"

    @tool()
    def whoami(self, context: ToolContext | None = None) -> dict[str, Any]:
        """Says who calls."""
        seen = ToolContext.current()
        return {"role": seen.role, "session": seen.caller.session, "same": seen is context, "tool": seen.tool, "call": bool(seen.call_id)}

    @tool()
    def clock(self) -> str:
        """Says what time it is."""
        return self.now().isoformat()

    @tool()
    def crash(self) -> str:
        """Fails by accident."""
        raise RuntimeError("boom")

    @tool()
    async def steps(self, context: ToolContext) -> str:
        """Tells its progress."""
        for done in (1, 2):
            await context.progress(done, 2, f"step {done}")
        return "done"

    @tool()
    def hold(self) -> str:
        """Blocks its thread until the test lets it go."""
        self.entered.set()
        self.go_on.wait(30)
        return "held"

    @tool()
    def echo(self, _x: Any = None, model_config: Any = None, **others: Any) -> ToolResult:
        """Gives back what it got."""
        sent = {"_x": _x, "model_config": model_config, **others}
        return ToolResult("sent", structured={key: value for key, value in sent.items() if value is not None})

    @tool()
    def picture(self) -> list[Image | str]:
        """Gives a picture and a word."""
        return [Image(b"\x89PNG"), "a picture"]

    @tool()
    def item(self, item: Annotated[Item, Field(description="An item.")], tags: Annotated[list[str], Field(description="Tags.")]) -> Item:
        """Gives an item back."""
        return item.model_copy(update={"sku": "/".join([item.sku, *tags])})

    @extension("urn:agentenv:set-errors/v1", description="Inject failures.")
    async def set_errors(self, tool_name: str, rate: float = 0.5) -> dict[str, Any]:
        return {"tool_name": tool_name, "rate": rate}

    @extension("urn:agentenv:coerce/v1", method="get")
    def coerce(
        self,
        context: ToolContext,
        *,
        flag: bool = False,
        count: int = 0,
        share: float = 0.0,
        price: Decimal = Decimal(0),
        moment: dt.datetime | None = None,
        day: dt.date | None = None,
        hour: dt.time | None = None,
        ident: uuid.UUID | None = None,
        colour: Colour = Colour.RED,
        mode: Literal["live", "fixed"] = "live",
        level: Literal[1, 2] = 1,
        tags: list[str] = [],  # noqa: B006 - never changed
        free=None,  # type: ignore[no-untyped-def]
    ) -> dict[str, Any]:
        values = locals()
        return {name: f"{type(values[name]).__name__}:{values[name]}" for name in values if name not in {"self", "context"}} | {
            "role": context.role
        }

    @extension("urn:agentenv:shelf/v1", op="get", description="Shelves.", method="GET")
    def shelf(self) -> None:
        return None

    @extension("urn:agentenv:shelf/v1", op="put")
    def put_shelf(self, name: str) -> dict[str, Any]:
        return {"name": name, "at": dt.date(2026, 5, 1)}

    @extension("urn:agentenv:fail/v1", op="purpose")
    def fail_on_purpose(self) -> None:
        raise AgentEnvError("busy", "later", status=409, retryable=True)

    @extension("urn:agentenv:fail/v1", op="accident")
    def fail_by_accident(self) -> None:
        raise KeyError("oops")

    def extension_params(self, uri: str) -> dict[str, Any]:
        return {"features": ["wide"]} if "shelf" in uri else {}

    def declared_extensions(self) -> list[Any]:
        return [IntakeDeclaration(add=[IntakeFormat(part="data", format="json", load="additive")]).extension()]

    def manifests(self) -> dict[str, Any]:
        manifest = InterfaceManifest(
            service="stock", entities=[Entity(name="item", operations=[Operation(kind="read", tool="stock_count")])]
        )
        return {"core": manifest, "cli": manifest.cli()}


@environment(name="paged")
class Paged(Environment):
    """Many tools in small pages."""

    tools_page_size = 2

    @tool()
    def a(self) -> None:
        """One."""

    @tool()
    def b(self) -> None:
        """Two."""

    @tool()
    def c(self) -> None:
        """Three."""

    @tool()
    def d(self) -> None:
        """Four."""

    @tool()
    def e(self) -> None:
        """Five."""


class Guarded(Environment):
    """Answers some calls before the tool does, and serves less than it has."""

    @tool()
    def open(self, door: str) -> str:
        """Open a door."""
        return f"{door} is open"

    @tool()
    def close(self) -> str:
        """Not served."""
        return "closed"

    @get_data
    def everything(self) -> dict[str, Any]:
        return {"kind": "text", "text": "all"}

    @reset_data
    def nothing(self) -> None:
        return None

    async def on_tool_call(self, context: ToolContext) -> ToolResult | None:
        if context.arguments.get("door") == "secret":
            return ToolResult("no such door", is_error=True)
        return None

    def served_tools(self, tools: Any) -> Any:
        return [each.model_copy(update={"description": "Open any door."}) for each in tools if each.name == "open"]

    def served_operations(self, operations: Any) -> Any:
        return [operation for operation in operations if operation == "data/get"]


class Slow(Environment):
    """Async loads that end only by being cancelled."""

    def __init__(self) -> None:
        self.rows = ["before"]
        self.loading = asyncio.Event()

    @reset_data
    def wipe(self) -> None:
        self.rows.clear()

    @get_data
    def dump(self) -> list[Any]:
        return [TextPart(text=row) for row in self.rows]

    @add_data
    async def fill(self, parts: list[Any]) -> None:
        for part in parts:
            self.rows.append(part.text)
            if part.text == "endless":
                self.loading.set()
                await asyncio.Event().wait()
