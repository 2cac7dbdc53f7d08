"""A server as the published package's own documentation has people write it."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlparse

from agentenv_protocol import AgentEnvEnvironment, DataPart, FilePart, add_data, environment_card, get_data, reset_data, tool
from pydantic import Field


@environment_card(name="chat")
class Chat(AgentEnvEnvironment):
    """Messages, in order."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []

    @reset_data
    async def wipe(self) -> None:
        """Forgets everything."""
        self.messages.clear()

    @add_data
    def load(self, parts: list[Any]) -> None:
        """Takes messages, inline or from a staged file."""
        for part in parts:
            if isinstance(part, DataPart):
                payload = part.data
            elif isinstance(part, FilePart) and getattr(part.file, "bytes", None) is not None:
                payload = json.loads(base64.b64decode(part.file.bytes))
            elif isinstance(part, FilePart):
                payload = json.loads(Path(urlparse(part.file.uri).path).read_bytes())
            else:
                continue
            self.messages.extend(payload.get("messages", []))

    @get_data
    async def state(self) -> list[DataPart]:
        """Gives them."""
        return [DataPart(data={"messages": self.messages})]

    @tool(name="chat_say")
    async def say(self, text: Annotated[str, Field(description="What is said.")]) -> str:
        """Say something."""
        self.messages.append({"text": text})
        return f"said {text}"


if __name__ == "__main__":
    Chat().serve()
