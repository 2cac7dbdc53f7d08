"""Documents and images of agents, from the stores."""

from __future__ import annotations

from agent_env.documents.agent import AgentDocument, read_agent
from agent_env.documents.spelling import near
from agent_env.environments.lookup import StoredLookup
from agent_env.errors import NotFoundError, UserError

COLLECTION = "agents"


class StoredAgents(StoredLookup):
    """Looks into the stores."""

    def agent(self, id: str, version: int | None = None) -> AgentDocument:
        """An agent's document.

        Raises:
            NotFoundError: There is none.
            UserError: It is something else.
        """
        stored = self._artifacts.documents.get(COLLECTION, id, version)
        if stored is None:
            meant = near(id, self._artifacts.documents.ids(COLLECTION))
            said = f" version {version}" if version else ""
            hint = f"did you mean {meant!r}?" if meant else "agent-env agent list"
            raise NotFoundError(f"there is no agent {id!r}{said}", concerns=id, hint=hint)
        self.used[COLLECTION, stored.id, stored.version, stored.digest] = None
        document = read_agent({**stored.body, "id": stored.id, "type": stored.type, "version": stored.version}, source=stored.id)
        if not isinstance(document, AgentDocument):
            raise UserError(f"{id!r} is a {document.type}, not an agent", concerns=id)
        return document
