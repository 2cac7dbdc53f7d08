"""What is sent to `proxy/v1`: how an agent without a model is driven from outside."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, StrictInt, model_validator

from .agent_bodies import Body

SHORTEST_TOKEN: Final = 22
"""Characters of a driver's token: about 128 bits of a URL-safe base64 text."""


class Driven(Body):
    """Every request of a driver carries its token."""

    token: str = Field(repr=False)


class Claim(Driven):
    """The first one makes the agent the driver's own."""

    token: str = Field(min_length=SHORTEST_TOKEN, repr=False)


class Next(Driven):
    """Waits for open turns to be others than in a version."""

    after: Annotated[StrictInt, Field(ge=0)] = 0


class ToolsOf(Driven):
    """What a turn can call."""

    task_id: str


class ToolAction(Body):
    """A call of an MCP server's tool."""

    kind: Literal["tool"]
    server: str
    name: str
    arguments: dict[str, Any] = Field(default_factory=dict)
    timeout_seconds: float | None = Field(default=None, gt=0)


class BashAction(Body):
    """A command."""

    kind: Literal["bash"]
    command: str
    timeout_seconds: float | None = Field(default=None, gt=0)


class Act(Driven):
    """Has an action done; the same id again finds the one that was begun."""

    task_id: str
    action_id: str = Field(min_length=1, max_length=128)
    action: Annotated[ToolAction | BashAction, Field(discriminator="kind")]


class ResultOf(Driven):
    """Asks for an action's result."""

    action_id: str


class Record(Driven):
    """What a model said: an assistant's message of OpenAI's or Anthropic's shape, or a text."""

    task_id: str
    message: str | dict[str, Any]
    model: str | None = None
    usage: dict[str, Any] | None = None


class ReplyPart(Body):
    """A text of an answer."""

    kind: Literal["text"] = "text"
    text: str


class Reply(Driven):
    """Closes a turn."""

    task_id: str
    parts: list[ReplyPart] | None = Field(default=None, min_length=1)
    error: str | None = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.parts is None) == (self.error is None):
            raise ValueError("a reply has either parts or an error")
        return self
