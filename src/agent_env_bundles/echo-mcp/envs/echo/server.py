"""A server that says back what it hears, and remembers it."""

from __future__ import annotations

from typing import Annotated, Any

from agent_env_sdk.environment import DataPart, Environment, add_data, atomic, environment, get_data, read_json, reset_data, tool
from pydantic import Field


@environment(name="echo")
class Echo(Environment):
    """What was said, in order."""

    def __init__(self) -> None:
        self.said: list[str] = []

    @reset_data
    def forget(self) -> None:
        """Nothing was said."""
        self.said.clear()

    @add_data
    def remember(self, parts: list[Any]) -> None:
        """Takes {"said": ["…"]}."""
        with atomic(self, "said"):
            for part in parts:
                self.said += [str(text) for text in read_json(part)["said"]]

    @get_data
    def recall(self) -> list[DataPart]:
        """Gives what `remember` takes."""
        return [DataPart(data={"said": self.said})]

    @tool(name="echo")
    def echo(self, text: Annotated[str, Field(description="What to say back.")]) -> str:
        """Say back a text, unchanged."""
        self.said.append(text)
        return text


if __name__ == "__main__":
    Echo().serve()
