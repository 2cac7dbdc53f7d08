"""Documents and images of agents, from the stores."""

from __future__ import annotations

from agent_env.documents.agent import AgentDocument, read_agent
from agent_env.environments.lookup import StoredLookup
from agent_env.errors import UserError

COLLECTION = "agents"


class StoredAgents(StoredLookup):
    """Looks into the stores."""

    def agent(self, id: str, version: int | None = None) -> AgentDocument:
        """An agent's document.

        Raises:
            NotFoundError: There is none.
            UserError: It is something else.
        """
        stored = self._artifacts.documents.named(COLLECTION, id, version)
        self.used[COLLECTION, stored.id, stored.version, stored.digest] = None
        document = read_agent({**stored.body, "id": stored.id, "type": stored.type, "version": stored.version}, source=stored.id)
        if not isinstance(document, AgentDocument):
            raise UserError(f"{id!r} is a {document.type}, not an agent", concerns=id)
        return document
