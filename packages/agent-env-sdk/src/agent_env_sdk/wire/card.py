"""The environment card: what a server says of itself, and where each thing that it names is to be found."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from .names import CARD_PATH, MCP_PATH, MCP_TRANSPORT, OPERATIONS, PROTOCOL_VERSION, RPC_PATH, RPC_TRANSPORT


class _Wire(BaseModel):
    """Fields are named as Python names them and spelled on the wire as the protocol does; unknown ones are ignored."""

    model_config = ConfigDict(
        frozen=True, extra="ignore", validate_by_name=True, validate_by_alias=True, serialize_by_alias=True, defer_build=True
    )


class Interface(_Wire):
    """A further way to reach the server."""

    url: str
    transport: str


class Extension(_Wire):
    """Something that a server offers beyond tools and data, by its URN."""

    uri: str
    description: str | None = None
    params: dict[str, Any] | None = None
    required: bool | None = None


class Tool(_Wire):
    """A tool as the card shows it; calling it is MCP's business."""

    name: str
    description: str | None = None
    input_schema: dict[str, Any] | None = Field(default=None, alias="inputSchema")


class Capabilities(_Wire):
    """What a server can do."""

    extensions: list[Extension] | None = None
    tools: list[Tool] | None = None
    operations: list[str] | None = None
    """Operations of the data plane. None marks a card older than this field: then all three are meant."""


class EnvironmentCard(_Wire):
    """A server's card, or a gateway's with its servers' as children."""

    name: str = Field(min_length=1)
    protocol_version: str = Field(default=PROTOCOL_VERSION, alias="protocolVersion")
    url: str = RPC_PATH
    preferred_transport: str = Field(default=RPC_TRANSPORT, alias="preferredTransport")
    additional_interfaces: list[Interface] = Field(default_factory=list, alias="additionalInterfaces")
    capabilities: Capabilities = Field(default_factory=Capabilities)
    children_environments: list[EnvironmentCard] | None = None

    @field_validator("additional_interfaces", mode="before")
    @classmethod
    def _no_interfaces(cls, value: Any) -> Any:
        return [] if value is None else value

    @field_validator("capabilities", mode="before")
    @classmethod
    def _no_capabilities(cls, value: Any) -> Any:
        return {} if value is None else value

    def to_json(self) -> dict[str, Any]:
        """The card as the wire carries it: every field, null where nothing is set."""
        return self.model_dump(mode="json")


@dataclass(frozen=True, slots=True)
class ExtensionMethod:
    """One method of an extension, ready to be called."""

    name: str | None
    """None for an extension that names no methods: then there is one."""
    verb: str
    endpoint: str
    """A path, joined onto the address that the card came from."""
    request: dict[str, Any] | None = None
    """The JSON Schema of its arguments, when the card gives one."""


def operations(card: EnvironmentCard) -> tuple[str, ...]:
    """The operations of the data plane that the server serves."""
    listed = card.capabilities.operations
    return OPERATIONS if listed is None else tuple(listed)


def mcp_path(card: EnvironmentCard) -> str:
    """Where the server speaks MCP: the first `mcp` interface that the card declares, else `/mcp`."""
    return next((each.url for each in card.additional_interfaces if each.transport == MCP_TRANSPORT and each.url), MCP_PATH)


def join(base: str, path: str) -> str:
    """A card's path on the address that the card came from: concatenated with one slash, so that a prefix survives."""
    return f"{base.rstrip('/')}/{path.lstrip('/')}"


def base_of(card_url: str) -> str:
    """The address that a card's paths are joined onto, from the card's own address."""
    return card_url.removesuffix(CARD_PATH).rstrip("/")


def find_extension(card: EnvironmentCard, uri: str) -> Extension | None:
    """The extension that the card advertises under a URN."""
    return next((extension for extension in card.capabilities.extensions or [] if extension.uri == uri), None)


def find_child(card: EnvironmentCard, name: str) -> EnvironmentCard | None:
    """The child of that name; a card without children is its own child."""
    if not card.children_environments:
        return card if card.name == name else None
    return next((child for child in card.children_environments if child.name == name), None)


def methods(extension: Extension) -> Iterator[ExtensionMethod]:
    """The methods of an extension, in the card's order: a caller that names none gets the first."""
    params = extension.params or {}
    shared, listed = params.get("endpoint"), params.get("methods")
    if not listed:
        if shared:
            yield ExtensionMethod(None, "POST", str(shared))
        return
    for name, entry in listed.items():
        fields = entry if isinstance(entry, dict) else {}
        endpoint = fields.get("endpoint") or shared
        if endpoint:
            yield ExtensionMethod(name, str(fields.get("method") or "POST").upper(), str(endpoint), fields.get("request"))


def find_method(card: EnvironmentCard, uri: str, name: str | None = None) -> ExtensionMethod:
    """The method to call.

    Args:
        card: The server's card.
        uri: The extension's URN.
        name: The method; None for the first that is listed.

    Raises:
        LookupError: The card advertises no such extension or method.
    """
    extension = find_extension(card, uri)
    if extension is None:
        raise LookupError(f"{card.name} does not advertise the extension {uri}")
    offered = list(methods(extension))
    found = offered[0] if offered and name is None else next((method for method in offered if method.name == name), None)
    if found is None:
        names = ", ".join(method.name or "its only one" for method in offered) or "none: it only declares something"
        raise LookupError(f"the extension {uri} of {card.name} has no method {name!r}; it has {names}")
    return found
