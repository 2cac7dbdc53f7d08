"""A mailbox: a few messages to begin with, a search, and sending."""

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
    get_data,
    read_json,
    reset_data,
    tool,
)
from pydantic import Field

FIRST = [
    {"id": "m-1", "from": "accounts@northwind.example", "subject": "Invoice 2041", "body": "Please pay 1,180.00 by the end of the month."},
    {"id": "m-2", "from": "noor@example.com", "subject": "Lunch", "body": "Soup at twelve?"},
    {"id": "m-3", "from": "helpdesk@example.com", "subject": "New laptop", "body": "It is ready at the desk on floor 2."},
]


@environment(name="mail")
class Mail(Environment):
    """Messages, oldest first."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = [dict(message) for message in FIRST]

    @reset_data
    def empty(self) -> None:
        """No message is left."""
        self.messages.clear()

    @add_data
    def load(self, parts: list[Any]) -> None:
        """Takes {"messages": [{"id", "from", "subject", "body"}]}."""
        with atomic(self, "messages"):
            for part in parts:
                self.messages += [dict(message) for message in read_json(part)["messages"]]

    @get_data
    def export(self) -> list[DataPart]:
        """Gives what `load` takes."""
        return [DataPart(data={"messages": self.messages})]

    @tool(name="search_emails", annotations={"readOnlyHint": True})
    def search(self, query: Annotated[str, Field(description="Words that sender, subject or body must all hold.")]) -> str:
        """Search the mailbox, ignoring case: the messages that hold every word of the query, as a JSON list."""
        words = query.lower().split()
        return json.dumps([each for each in self.messages if all(word in " ".join(map(str, each.values())).lower() for word in words)])

    @tool(name="send_email")
    def send(
        self,
        to: Annotated[str, Field(description="The recipient's address.")],
        subject: Annotated[str, Field(description="The subject.")],
        body: Annotated[str, Field(description="The text.")],
        who: ToolContext,
    ) -> str:
        """Send a message. It is kept in the mailbox."""
        if "@" not in to:
            raise AgentEnvError("bad_address", f"{to!r} is no address")
        sender = f"{who.role or 'me'}@example.com"
        number = len(self.messages) + 1
        self.messages.append({"id": f"m-{number}", "from": sender, "to": to, "subject": subject, "body": body})
        return f"sent m-{number}"


if __name__ == "__main__":
    Mail().serve()
