"""The extensions that agents serve: names, paths, operations and their fields, and how a card declares them.

A card tells the fields of a request as a contract (`required`, `optional`, `oneOf` variants), not as a schema, so that a
caller knows which of the fields that it has an agent takes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from . import agent_bodies as bodies
from .a2a import AgentCard, AgentExtension

AGENT_CONFIG: Final = "urn:agentenv:agent-config/v1"
"""Also the key of a message's metadata that configures that one message."""
MCP_CONFIG: Final = "urn:agentenv:mcp-config/v1"
SKILL_CONFIG: Final = "urn:agentenv:skill-config/v1"
TRAJECTORY: Final = "urn:agentenv:trajectory/v1"
SNAPSHOT: Final = "urn:agentenv:snapshot/v1"
PEER_AGENTS: Final = "urn:agentenv:peer-agents/v1"
ATTRIBUTION_PROBE: Final = "urn:agentenv:attribution-probe/v1"
TRIGGERS: Final = "urn:agentenv:triggers/v1"
INSTALL: Final = "urn:agentenv:install/v1"
PROXY: Final = "urn:agentenv:proxy/v1"
STAGING: Final = "urn:agentenv:staging/v1"
PER_MESSAGE_CONFIG: Final = "urn:agentenv:message-config/v1"
"""Declares that `message.metadata[AGENT_CONFIG]` configures that message alone."""

MESSAGE_IDS: Final = "message_ids"
IDEMPOTENT: Final = "idempotent"
"""Of that extension's params: a message that is sent again, with the same id, is not worked on again."""

CONFIG_FIELDS: Final = (
    "model", "system_prompt", "effort", "harness", "max_turns", "max_thinking_tokens", "output_format", "timeout_seconds", "task_id",
    "agentenv_tools", "model_params", "name", "description", "role",
)  # fmt: skip
"""What the framework may send to `agent-config`, of which it sends what the card supports."""
READBACK: Final = "readback"
PEER_HEADERS: Final = "headers"
"""A feature of `peer-agents`: each peer may come with headers."""
CHANGELOG: Final = "changelog"
"""A feature of `snapshot`: what each call of a tool changes is recorded."""
HIDDEN_VALUE: Final = "***"
"""What `agent-config` answers in place of a write-only value."""

Fields = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Operation:
    """One thing that an extension does."""

    name: str
    verb: str
    path: str
    requests: tuple[type[bodies.Body], ...] = ()
    """The variants of what is sent; none for an operation whose body is told elsewhere, or that has no body."""
    required: tuple[str, ...] = ()
    """The fields of a request without a variant here."""
    optional: tuple[str, ...] = ()
    response: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Standard:
    """An extension as the protocol defines it."""

    uri: str
    path: str | None
    description: str
    operations: tuple[Operation, ...] = ()


def _standard(uri: str, path: str, description: str, *operations: tuple[str, str] | tuple[str, str, dict[str, Any]]) -> Standard:
    made = []
    for name, verb, *rest in operations:
        options: dict[str, Any] = dict(rest[0]) if rest else {}
        requests = options.pop("requests", ())
        made.append(Operation(name, verb, path + options.pop("under", ""), requests, **options))
    return Standard(uri, path, description, tuple(made))


STANDARDS: Final[Mapping[str, Standard]] = {
    standard.uri: standard
    for standard in (
        _standard(AGENT_CONFIG, "/ext/agent-config", "Configure the agent.", ("set", "POST"), ("get", "GET", {"response": ("config",)})),
        _standard(
            MCP_CONFIG, "/ext/mcp-config", "Register MCP servers the agent should use.",
            ("add", "POST", {"requests": (bodies.McpAdd,)}),
            ("list", "GET", {"response": ("mcp_servers",)}),
            ("upsert", "PUT", {"requests": (bodies.McpUpsert,), "response": ("status", "name", "url")}),
            ("remove", "DELETE", {"requests": (bodies.McpRemove,), "response": ("removed",)}),
        ),
        _standard(
            SKILL_CONFIG, "/ext/skill-config", "Install skills.",
            ("add", "POST", {"requests": (bodies.SkillInline, bodies.SkillBundle), "response": ("name",)}),
            ("list", "GET", {"response": ("skills",)}),
        ),
        _standard(
            TRAJECTORY, "/ext/trajectory", "Retrieve an agent trajectory.",
            ("get", "POST", {"requests": (
                bodies.OfTask, bodies.OfTaskObjects, bodies.OfContext, bodies.OfContextObjects, bodies.OfTaskPage, bodies.OfContextPage,
            )}),
        ),
        _standard(
            SNAPSHOT, "/ext/snapshot", "Save and load a conversation with its workspace.",
            ("save", "POST", {"requests": (bodies.SnapshotSave,), "response": ("context_id", "objects")}),
            ("load", "PUT", {"requests": (bodies.SnapshotLoad,), "response": ("context_id",)}),
            ("enable-changelog", "POST", {"requests": (bodies.ChangelogEnable,), "response": ("roots",), "under": "/changelog"}),
            ("apply-changelog", "PUT", {"requests": (bodies.ChangelogApply,), "response": ("count", "context_id"), "under": "/changelog"}),
        ),
        _standard(
            PEER_AGENTS, "/ext/peer-agents", "Configure peer A2A agents available for delegation.",
            ("set", "POST", {"requests": (bodies.PeersSet,)}),
            ("list", "GET", {"response": ("peers",)}),
        ),
        _standard(
            ATTRIBUTION_PROBE, "/ext/attribution-probe", "Tell the attribution that was seen last.",
            ("probe", "POST", {"requests": (bodies.Nothing,), "response": ("last_seen_attribution", "last_seen_at_utc")}),
        ),
        _standard(
            TRIGGERS, "/ext/triggers", "Register triggers and decide deterministic responses.",
            ("register", "POST", {"required": ("triggers",)}),
            ("decide", "POST", {
                "under": "/decide", "required": ("turn",), "optional": ("solver_message", "context_id", "env_triggers"),
                "response": ("parts", "done", "fired"),
            }),
            ("state", "GET", {"response": ("triggers", "firing_log")}),
        ),
        _standard(
            PROXY, "/ext/proxy", "An agent without a model, driven from outside.",
            *((name, "POST", {"under": f"/{name}"}) for name in ("claim", "next", "tools", "act", "result", "record", "reply")),
        ),
        Standard(STAGING, "/ext/staging", "Stage objects on the agent."),
        Standard(INSTALL, None, "How to install the agent into a machine or container."),
    )
}  # fmt: skip
"""By URN: everything that an agent of this protocol may advertise."""


def operation(uri: str, name: str) -> Operation:
    """An operation of a standard extension.

    Raises:
        LookupError: There is none of that name.
    """
    standard = STANDARDS.get(uri)
    found = next((each for each in standard.operations if each.name == name), None) if standard else None
    if found is None:
        raise LookupError(f"{uri} has no operation {name!r}")
    return found


def fields_of(model: type[bodies.Body]) -> Fields:
    """A body's fields as a card tells them."""
    required = tuple(field.alias or name for name, field in model.model_fields.items() if field.is_required())
    optional = tuple(field.alias or name for name, field in model.model_fields.items() if not field.is_required())
    return _told(required, optional)


def contract(requests: Iterable[type[bodies.Body]]) -> dict[str, Any]:
    """How a card tells which fields a request takes; what all variants share stands outside of `oneOf`."""
    variants = [fields_of(model) for model in requests]
    if len(variants) <= 1:
        return {key: list(names) for key, names in (variants[0] if variants else {}).items()}
    shared = {
        key: [name for name in variants[0].get(key, ()) if all(name in variant.get(key, ()) for variant in variants)]
        for key in ("required", "optional")
    }
    branches = [
        {key: rest for key, names in variant.items() if (rest := [name for name in names if name not in shared[key]])}
        for variant in variants
    ]
    return {**{key: names for key, names in shared.items() if names}, "oneOf": branches}


def advertised(
    uri: str,
    operations: Iterable[str],
    *,
    requests: Mapping[str, Iterable[type[bodies.Body]]] | None = None,
    told: Mapping[str, Mapping[str, Any]] | None = None,
    params: Mapping[str, Any] | None = None,
) -> AgentExtension:
    """The card's entry of a standard extension.

    Args:
        uri: Its URN.
        operations: Which of its operations are served.
        requests: By operation, the variants that are taken, where not all are.
        told: By operation, a request's contract that isn't of this table.
        params: More for the entry's `params`.

    Raises:
        LookupError: The protocol has no such operation.
    """
    standard, methods = STANDARDS[uri], {}
    for name in operations:
        known = operation(uri, name)
        entry: dict[str, Any] = {"method": known.verb}
        if known.path != standard.path:
            entry["endpoint"] = known.path
        request = (told or {}).get(name) or contract((requests or {}).get(name, known.requests)) or _lists(known.required, known.optional)
        if request:
            entry["request"] = dict(request)
        if known.response:
            entry["response"] = {"required": list(known.response)}
        methods[name] = entry
    shown: dict[str, Any] = {"endpoint": standard.path} if standard.path else {}
    if methods:
        shown["methods"] = methods
    return AgentExtension(uri=uri, description=standard.description, params={**shown, **(params or {})})


def find(card: AgentCard, uri: str) -> AgentExtension | None:
    """The card's entry of an extension."""
    return next((each for each in card.capabilities.extensions or [] if each.uri == uri), None)


def method_of(card: AgentCard, uri: str, name: str) -> Mapping[str, Any] | None:
    """What the card tells of an operation, or None when it doesn't advertise it."""
    extension = find(card, uri)
    if extension is None:
        return None
    methods = (extension.params or {}).get("methods")
    entry = methods.get(name) if isinstance(methods, dict) else None
    return entry if isinstance(entry, dict) else None


def endpoint_of(card: AgentCard, uri: str, name: str) -> str:
    """The path of an operation: the method's own; else the protocol's, where that differs from its extension's; else the
    card's for the extension; else the protocol's.

    Raises:
        LookupError: The protocol has no such operation.
    """
    standard, known = STANDARDS.get(uri), operation(uri, name)
    own = (method_of(card, uri, name) or {}).get("endpoint")
    extension = find(card, uri)
    shared = (extension.params or {}).get("endpoint") if extension else None
    if isinstance(own, str) and own:
        return own
    if standard is not None and known.path != standard.path:
        return known.path
    return shared if isinstance(shared, str) and shared else known.path


def card_request_accepts(request: Mapping[str, Any], fields: Iterable[str]) -> bool:
    """Whether a card's contract takes a request of exactly these fields. What is none takes no fields."""
    sent = set(fields)
    if not isinstance(request, Mapping):
        return not sent
    required, declared = _known(request)
    branches = request.get("oneOf")
    for branch in branches if isinstance(branches, list) and branches else [{}]:
        if not isinstance(branch, Mapping):
            continue
        more_required, more_declared = _known(branch)
        if required | more_required <= sent <= declared | more_declared:
            return True
    return False


def supported_config(card: AgentCard) -> frozenset[str]:
    """The fields that the agent's `agent-config` takes; none when it advertises none."""
    entry = method_of(card, AGENT_CONFIG, "set")
    request = (entry or {}).get("request")
    return frozenset(_known(request)[1]) if isinstance(request, dict) else frozenset()


def takes_message_config(card: AgentCard) -> bool:
    """Whether a message's metadata may configure that message alone."""
    return find(card, PER_MESSAGE_CONFIG) is not None


def remembers_messages(card: AgentCard) -> bool:
    """Whether a message that is sent again finds the task that it started, by its id."""
    extension = find(card, PER_MESSAGE_CONFIG)
    return extension is not None and (extension.params or {}).get(MESSAGE_IDS) == IDEMPOTENT


def _known(contract_: Mapping[str, Any]) -> tuple[set[str], set[str]]:
    required, optional, supported = (_texts(contract_.get(name)) for name in ("required", "optional", "supported"))
    return required, required | optional | supported


def _texts(value: object) -> set[str]:
    return {each for each in value if isinstance(each, str)} if isinstance(value, Iterable) and not isinstance(value, str) else set()


def _told(required: tuple[str, ...], optional: tuple[str, ...]) -> Fields:
    return {key: names for key, names in (("required", required), ("optional", optional)) if names}


def _lists(required: tuple[str, ...], optional: tuple[str, ...]) -> dict[str, list[str]]:
    return {key: list(names) for key, names in _told(required, optional).items()}
