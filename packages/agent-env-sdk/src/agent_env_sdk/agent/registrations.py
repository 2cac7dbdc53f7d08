"""What is registered with an agent from outside: settings, servers of tools, peers, skills; kept across restarts."""

from __future__ import annotations

import uuid
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from agent_env_sdk.wire.agent_bodies import McpAdd, McpUpsert, Peer, PeersSet
from agent_env_sdk.wire.agent_extensions import HIDDEN_VALUE
from agent_env_sdk.wire.errors import AgentEnvError

from .storage import Storage
from .turns import AgentConfig, McpServer, Skill, WriteOnly

REMEMBERED_SESSIONS: Final = 4096
"""Conversations whose session reference is kept, the most recent ones."""


class InvalidFieldsError(AgentEnvError):
    """A request whose fields don't fit, with what is wrong of each but not its value."""

    def __init__(self, error: ValidationError) -> None:
        problems = error.errors(include_input=False, include_url=False, include_context=False)
        texts = [f"{'.'.join(map(str, each['loc'])) or 'body'}: {each['msg']}" for each in problems]
        super().__init__("invalid_params", "; ".join(texts))


class Registrations:
    """The settings and lists of one agent.

    Args:
        storage: Where they are kept.
        config: Which settings the agent takes.
    """

    def __init__(self, storage: Storage, config: type[AgentConfig]) -> None:
        self._storage, self._config = storage, config
        saved = storage.registrations()
        self._set: dict[str, Any] = saved.get("config", {})
        self.mcp: dict[str, McpServer] = {name: McpServer(entry["url"], entry["headers"]) for name, entry in saved.get("mcp", {}).items()}
        self.peers: tuple[Peer, ...] = tuple(Peer.model_validate(peer) for peer in saved.get("peers", []))
        self.skills: dict[str, Skill] = {
            entry["name"]: Skill(entry["name"], entry["description"], entry["skill_md"], Path(entry["folder"]) if entry["folder"] else None)
            for entry in saved.get("skills", [])
        }
        self._sessions: OrderedDict[str, str] = OrderedDict(saved.get("sessions", {}))

    @property
    def config(self) -> AgentConfig:
        """The settings as they stand."""
        return self._config.model_validate(self._set)

    def configured(self, more: Mapping[str, Any] | None) -> AgentConfig:
        """The settings with those of one message on top.

        Raises:
            ValidationError: They don't fit.
        """
        return self._config.model_validate({**self._set, **(more or {})})

    def set_config(self, value: Mapping[str, Any]) -> dict[str, Any]:
        """Merges settings; they are checked as a whole.

        Raises:
            InvalidFieldsError: They don't fit; nothing has changed then.
        """
        merged = {**self._set, **value}
        try:
            self._config.model_validate(merged)
        except ValidationError as error:
            raise InvalidFieldsError(error) from None
        self._set = merged
        self._save()
        return {"status": "updated"}

    def shown_config(self) -> dict[str, Any]:
        """The settings that were ever set; those that are write-only are hidden."""
        hidden = write_only(self._config)
        return {"config": {name: HIDDEN_VALUE if name in hidden else value for name, value in self._set.items()}}

    def add_mcp(self, body: McpAdd) -> dict[str, Any]:
        """Registers a server under a name of its own.

        Raises:
            AgentEnvError: `duplicate`, status 409: the name or the address is there already.
        """
        name = body.name or f"mcp_{uuid.uuid4().hex[:8]}"
        if name in self.mcp:
            raise AgentEnvError("duplicate", f"an MCP server named {name!r} is registered already", status=409, hint="PUT replaces it")
        if any(server.url == body.url for server in self.mcp.values()):
            raise AgentEnvError("duplicate", "an MCP server with this address is registered already", status=409, hint="PUT replaces it")
        return self._put(name, body, "added")

    def upsert_mcp(self, body: McpUpsert) -> dict[str, Any]:
        """Registers a server, or replaces the one of that name. The same twice is the same as once."""
        return self._put(body.name, body, "updated" if body.name in self.mcp else "added")

    def remove_mcp(self, name: str) -> dict[str, Any]:
        """Takes a server away."""
        removed = self.mcp.pop(name, None) is not None
        self._save()
        return {"removed": removed}

    def shown_mcp(self) -> dict[str, Any]:
        """The servers without their headers, which may hold keys."""
        return {"mcp_servers": {name: {"url": server.url, "has_headers": bool(server.headers)} for name, server in self.mcp.items()}}

    def set_peers(self, body: PeersSet) -> dict[str, Any]:
        """Replaces the table of peers."""
        self.peers = tuple(body.peers)
        self._save()
        return {"status": "updated", "peers": len(self.peers)}

    def shown_peers(self) -> dict[str, Any]:
        """The peers without their cards, and without their headers, which may hold keys."""
        return {"peers": [peer.model_dump(exclude={"card", "headers"}, exclude_none=True) for peer in self.peers]}

    def add_skill(self, skill: Skill) -> None:
        """Lists a skill whose files are in place."""
        self.skills[skill.name] = skill
        self._save()

    def session(self, context_id: str) -> str | None:
        """The session reference of a conversation."""
        return self._sessions.get(context_id)

    def set_session(self, context_id: str, reference: str) -> None:
        """Keeps a conversation's session reference."""
        self._sessions[context_id] = reference
        self._sessions.move_to_end(context_id)
        if len(self._sessions) > REMEMBERED_SESSIONS:
            self._sessions.popitem(last=False)
        self._save()

    def _put(self, name: str, body: McpAdd, status: str) -> dict[str, Any]:
        self.mcp[name] = McpServer(body.url, dict(body.headers or {}))
        self._save()
        return {"status": status, "name": name, "url": body.url}

    def _save(self) -> None:
        skills = [
            {
                "name": each.name,
                "description": each.description,
                "skill_md": each.skill_md,
                "folder": str(each.folder) if each.folder else None,
            }
            for each in self.skills.values()
        ]
        self._storage.save_registrations(
            {
                "config": self._set,
                "mcp": {name: {"url": server.url, "headers": dict(server.headers)} for name, server in self.mcp.items()},
                "peers": [peer.model_dump(mode="json") for peer in self.peers],
                "skills": skills,
                "sessions": self._sessions,
            }
        )


def write_only(config: type[AgentConfig]) -> frozenset[str]:
    """The settings that are never read back."""
    return frozenset(
        field.alias or name
        for name, field in config.model_fields.items()
        if any(isinstance(mark, WriteOnly) or mark is WriteOnly for mark in field.metadata)
    )


def schema_of(config: type[AgentConfig]) -> dict[str, Any]:
    """The settings' JSON Schema as a card tells it: without defaults, which may be secret, and with write-only ones marked."""
    schema: dict[str, Any] = _without_defaults(config.model_json_schema())
    for name in write_only(config):
        schema["properties"][name]["writeOnly"] = True
    return schema


def _without_defaults(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            name: {key: _without_defaults(each) for key, each in inner.items()} if name == "properties" else _without_defaults(inner)
            for name, inner in value.items()
            if name != "default"
        }
    return [_without_defaults(each) for each in value] if isinstance(value, list) else value
