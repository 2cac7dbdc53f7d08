"""What checks of a server are about, and what they are given."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from agent_env_sdk.wire.names import READY_PATH

from agent_env import conformance
from agent_env.conformance import Result, SkippedError, Verdict, holds
from agent_env.environments.faults import EnvironmentUnreachableError, NotAdvertisedError

if TYPE_CHECKING:
    from agent_env.environments.client import EnvironmentClient

__all__ = ["Area", "Check", "Gate", "Result", "SkippedError", "Subject", "Verdict", "holds"]


class Gate(StrEnum):
    """What checks are about, in the reference's words where it has some."""

    REACHABILITY = "reachability"
    """It answers, in time, under any host name, and lists tools."""
    CARD = "environment_card"
    CORE = "core_protocol"
    """The data plane and its errors."""
    TOOL_SCHEMA = "mcp_tool_schema"
    """Every tool says what it does and what it takes."""
    EXTENSIONS = "extensions"
    SPEC = "spec_conformance"
    """Its tools against the OpenAPI document that it serves."""
    ROUND_TRIP = "universe_roundtrip"
    """What it exports loads again, and exports the same."""


@dataclass(frozen=True)
class Subject:
    """The server under test."""

    client: EnvironmentClient
    name: str | None = None
    """What its card must say (or list as a child); None takes any name."""
    may_write: bool = False
    """Its data may be replaced; afterwards it holds again what it held."""
    is_gateway: bool = False
    """It stands before several servers: it has no data of its own."""
    seen: dict[str, Any] = field(default_factory=dict)
    """What a check has found out for later ones."""

    async def unreachable(self) -> str | None:
        """Why no connection to the server comes about; None where one does."""
        try:
            async with self.client.request("GET", READY_PATH):
                return None
        except EnvironmentUnreachableError as error:
            return str(error) if error.applied == "no" else None

    async def needs_card(self) -> None:
        """Skips the check for a server from before cards.

        Raises:
            SkippedError: It has none.
        """
        try:
            await self.client.raw_card()
        except NotAdvertisedError:
            raise SkippedError("card") from None


Area = conformance.Area[Subject]
Check = conformance.Check[Subject]
