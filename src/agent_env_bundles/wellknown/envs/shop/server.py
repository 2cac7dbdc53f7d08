"""A shop: articles on shelves, and orders."""

from __future__ import annotations

import json
from typing import Annotated, Any

from agent_env_sdk.environment import (
    AgentEnvError,
    DataPart,
    Environment,
    add_data,
    atomic,
    environment,
    get_data,
    read_json,
    reset_data,
    tool,
)
from pydantic import Field

Article = Annotated[str, Field(description="The article's name.")]


@environment(name="shop")
class Shop(Environment):
    """Articles by name."""

    def __init__(self) -> None:
        self.shelves: dict[str, int] = {"tea": 3, "mug": 1}
        self.orders: list[str] = []

    @reset_data
    def empty(self) -> None:
        """Nothing on the shelves."""
        self.shelves.clear()
        self.orders.clear()

    @add_data
    def load(self, parts: list[Any]) -> None:
        """Takes {"shelves": {"article": count}}."""
        with atomic(self, "shelves"):
            for part in parts:
                self.shelves |= {str(name): int(count) for name, count in read_json(part)["shelves"].items()}

    @get_data
    def export(self) -> list[DataPart]:
        """Gives what `load` takes, and the orders."""
        return [DataPart(data={"shelves": self.shelves, "orders": self.orders})]

    @tool(name="shop_stock", annotations={"readOnlyHint": True})
    def stock(self) -> str:
        """What is on the shelves, as JSON."""
        return json.dumps(self.shelves)

    @tool(name="shop_order")
    def order(self, article: Article) -> str:
        """Order one piece."""
        if self.shelves.get(article, 0) < 1:
            raise AgentEnvError("sold_out", f"there is no {article}")
        self.shelves[article] -= 1
        self.orders.append(article)
        return f"ordered {article}"


if __name__ == "__main__":
    Shop().serve()
