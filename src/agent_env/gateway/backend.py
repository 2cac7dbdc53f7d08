"""One server or website behind the gateway as HTTP: its connections and its card."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import urlsplit

from agent_env_sdk.wire.names import CARD_PATH, MCP_PATH, MCP_TRANSPORT

from agent_env.gateway.config import ServerConfig
from agent_env.gateway.defaults import GatewayLimits
from agent_env.gateway.exchange import Exchange, ExchangeError, TooLargeError


class Backend:
    """See the module.

    Args:
        server: Where it is.
        limits: How long it may take.
    """

    def __init__(self, server: ServerConfig, limits: GatewayLimits) -> None:
        self.server = server
        self.exchange = Exchange(server.url, limits)
        self._limits = limits
        self._elsewhere: Exchange | None = None
        """Where MCP is spoken, when that is another port."""
        self._card: dict[str, Any] | None = None
        self._asked_at: float | None = None
        self._asking: asyncio.Task[None] | None = None
        self.card_error: str | None = None
        """Why the last look at the card gave none."""

    async def card(self, *, fresh: bool = False) -> dict[str, Any] | None:
        """The card, asked for anew when the last look is some seconds old; the last one that was seen where the server does not answer.

        Args:
            fresh: Ask in any case.
        """
        now = asyncio.get_running_loop().time()
        if fresh or self._asked_at is None or now - self._asked_at > self._limits.card_fresh_seconds:
            if self._asking is None or self._asking.done():
                self._asking = asyncio.ensure_future(self._ask())
            await asyncio.shield(self._asking)
        return self._card

    @property
    def last_card(self) -> dict[str, Any] | None:
        """The card that was seen last."""
        return self._card

    async def mcp_endpoint(self) -> tuple[Exchange, str]:
        """Where it speaks MCP: as configured, else as its card declares (path, and port on the same host), else `/mcp`."""
        if self.server.mcp_path is not None:
            return self.exchange, "/" + self.server.mcp_path.lstrip("/")
        declared = declared_mcp(await self.card(fresh=self._card is None))
        here, there = urlsplit(self.server.url), urlsplit(declared)
        query = f"?{there.query}" if there.query else ""
        path = f"/{there.path.lstrip('/') or MCP_PATH[1:]}{query}"
        port = _port(declared)
        if there.scheme not in ("http", "https") or port in (None, here.port):
            return self.exchange, path
        if self._elsewhere is None:
            host = here.hostname or ""
            self._elsewhere = Exchange(f"{there.scheme}://{f'[{host}]' if ':' in host else host}:{port}", self._limits)
        return self._elsewhere, path

    def close(self) -> None:
        """Closes its connections."""
        self.exchange.close()
        if self._elsewhere is not None:
            self._elsewhere.close()

    async def _ask(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with (
                asyncio.timeout(self._limits.card_seconds),
                self.exchange.request("GET", CARD_PATH, {"Accept": "application/json"}) as response,
            ):
                body = await response.read(self._limits.answer_bytes)
                self._take(response.status, body)
        except TimeoutError:
            self.card_error = f"no card within {self._limits.card_seconds:g} s"
        except (ExchangeError, TooLargeError) as error:
            self.card_error = str(error)
        self._asked_at = loop.time()

    def _take(self, status: int, body: bytes) -> None:
        if status == 404:
            self._card, self.card_error = None, None
            return
        try:
            value = json.loads(body)
        except (ValueError, RecursionError):
            value = None
        if status == 200 and isinstance(value, dict) and isinstance(value.get("name"), str) and value["name"]:
            self._card, self.card_error = value, None
        else:
            self.card_error = f"HTTP {status} without a card"


def declared_mcp(card: dict[str, Any] | None) -> str:
    """Where a card says that MCP is spoken."""
    interfaces = (card or {}).get("additionalInterfaces")
    for each in interfaces if isinstance(interfaces, list) else []:
        if isinstance(each, dict) and each.get("transport") == MCP_TRANSPORT and isinstance(each.get("url"), str) and each["url"]:
            return str(each["url"]) if is_address(each["url"]) else MCP_PATH
    return MCP_PATH


def is_address(url: str) -> bool:
    """Whether a path or an address that a server wrote can be taken apart."""
    try:
        urlsplit(url)
    except ValueError:
        return False
    return True


def _port(url: str) -> int | None:
    try:
        return urlsplit(url).port
    except ValueError:  # not a number that a port can have
        return None
