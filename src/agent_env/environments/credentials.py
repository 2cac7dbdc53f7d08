"""Credentials of an environment's parts, derived from the installation's key: none is stored, and whoever comes back has them again."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote

from agent_env_sdk.wire.names import DATABASE_VARIABLE

from agent_env.documents.records import DeployedPart
from agent_env.environments.contract import Making

DATABASE_PORT = 5432
DATABASE_NAME = "agentenv"
DATABASE_HOST = "servicedb"
_BESIDE = f"{DATABASE_HOST}:{DATABASE_PORT}"
OWNER, READER = "agentenv_owner", "agentenv_reader"
"""Roles of the database: who sets it up, and who reads the changelog for the gateway."""


def key_sandbox(parts: Mapping[str, DeployedPart]) -> str:
    """The sandbox that an environment's credentials are derived from: of its servers', which are there before the gateway is."""
    return min(part.sandbox_id for part in parts.values() if part.kind in {"mcp_server", "website"})


def gateway_key(making: Making, sandbox_id: str) -> str:
    """The gateway's key: whoever can derive it may take any role."""
    return making.derive(sandbox_id, "gateway")


def database_password(making: Making, sandbox_id: str, role: str) -> str:
    """Of a role of the environment's database."""
    return making.derive(sandbox_id, "database", role)


def database_url(making: Making, sandbox_id: str, role: str, *, schema: str | None = None, at: str = _BESIDE) -> str:
    """How a role reaches the database.

    Args:
        making: Derives its password.
        sandbox_id: Of the database.
        role: The role.
        schema: What its names without a schema mean first; the role's own where it is a server's.
        at: The database's host and port, as whoever connects calls it.
    """
    where = f"{quote(role, safe='')}:{database_password(making, sandbox_id, role)}@{at}/{DATABASE_NAME}"
    if schema is None:
        return f"postgresql://{where}"
    doubled = schema.replace('"', '""')
    path = f'-c search_path="{doubled}",public'
    return f"postgresql://{where}?options={quote(path, safe=',')}"


def credentials_of(making: Making, part: DeployedPart, sandbox_id: str, *, database: bool) -> Mapping[str, str]:
    """The variables that a part's container is told and that nobody can look up in the engine.

    Args:
        making: Derives them.
        part: The part.
        sandbox_id: See `key_sandbox`.
        database: A database stands beside it.
    """
    from agent_env.gateway.config import DATABASE_VARIABLE as GATEWAY_DATABASE
    from agent_env.gateway.config import KEY_VARIABLE

    match part.kind:
        case "gateway":
            told = {KEY_VARIABLE: gateway_key(making, sandbox_id)}
            return {**told, GATEWAY_DATABASE: database_url(making, sandbox_id, READER)} if database else told
        case "mcp_server" | "website" if database:
            return {DATABASE_VARIABLE: database_url(making, sandbox_id, part.name, schema=part.name)}
        case "database":
            return {"POSTGRES_PASSWORD": database_password(making, sandbox_id, OWNER)}
    return {}
