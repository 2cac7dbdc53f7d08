"""The wire's names and numbers: paths, headers, `_meta` keys, URNs, and how a role is spelled.

They are fixed by what deployed servers, gateways and agents already send; changing one breaks them.
"""

from __future__ import annotations

from typing import Final

PROTOCOL_VERSION: Final = "1.0"
MCP_PROTOCOL_VERSION: Final = "2025-11-25"
"""The newest MCP revision that clients of version 1 offer."""

CARD_PATH: Final = "/.well-known/agent-env.json"
RPC_PATH: Final = "/agentenv"
MCP_PATH: Final = "/mcp"
READY_PATH: Final = "/ready"
EXTENSIONS_PATH: Final = f"{RPC_PATH}/ext"
MANIFEST_PATH: Final = f"{RPC_PATH}/interface-manifest"
ENABLE_PATH: Final = "/tools/enable"
DISABLE_PATH: Final = "/tools/disable"
PORT: Final = 18765

MCP_TRANSPORT: Final = "mcp"
RPC_TRANSPORT: Final = "JSONRPC"

ROLE_HEADER: Final = "AgentEnv-Role"
SESSION_HEADER: Final = "Mcp-Session-Id"
MCP_VERSION_HEADER: Final = "MCP-Protocol-Version"
STAGING_HEADER: Final = "AgentEnv-Staging-Path"
"""In a grant's headers: the URL's path as the grant's holder serves it itself, tried over loopback first."""

ROLE_META: Final = "agentenv.io/role"
"""Its presence in `_meta`, whatever the value, marks a call as proxied: headers then say nothing about the caller."""
SESSION_META: Final = "agentenv.io/session"
HIDDEN_META: Final = "agentenv.io/hiddenByDefault"
IDEMPOTENCY_META: Final = "agentenv.io/idempotencyKey"
"""In `_meta` of a call that a trigger makes: a call with the same key is the same one, made again because its end was not heard."""

DEFAULT_ROLE: Final = "default"
ANY: Final = "*"

RESET: Final = "data/reset"
ADD: Final = "data/add"
GET: Final = "data/get"
OPERATIONS: Final = (RESET, ADD, GET)

INTAKE: Final = "urn:agentenv:intake/v1"
DATA_OBJECTS: Final = "urn:agentenv:data-objects/v1"
GET_INTERFACES: Final = "urn:agentenv:get-interfaces/v1"
CLOCK: Final = "urn:agentenv:clock/v1"
DISABLE_TOOL: Final = "urn:agentenv:disable-tool/v1"
ENABLE_TOOL: Final = "urn:agentenv:enable-tool/v1"
TRIGGERS: Final = "urn:agentenv:triggers/v1"
TRAJECTORY: Final = "urn:agentenv:trajectory/v1"
STEP: Final = "urn:agentenv:step/v1"
STATE: Final = "urn:agentenv:state/v1"
CHANGES: Final = "urn:agentenv:changes/v1"
LOAD_JOBS: Final = "urn:agentenv:load-jobs/v1"
"""Loads as operations that can be watched, resumed and cancelled; see `environment.jobs`."""

HOST_VARIABLE: Final = "MCP_HOST"
PORT_VARIABLE: Final = "MCP_PORT"
NAME_VARIABLE: Final = "ENVIRONMENT_NAME"
LEGACY_NAME_VARIABLE: Final = "SERVICE_NAME"
DATABASE_VARIABLE: Final = "DATABASE_URL"


def normal_role(value: object) -> str | None:
    """The role that a header or a `_meta` entry names, stripped; None for nothing, blanks, and `default`."""
    role = value.strip() if isinstance(value, str) else ""
    return None if role in {"", DEFAULT_ROLE} else role
