"""The database's log of changes: where it stands, and what it says. Read beside the calls, never in their way for long.

A database that does not answer costs attribution, not calls: it is left alone for a moment and then asked again.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from agent_env.clock import timestamp
from agent_env.gateway.defaults import GatewayLimits
from agent_env.gateway.nursery import log

if TYPE_CHECKING:
    from psycopg import AsyncConnection

_POSITION = "SELECT coalesce(max(id), 0) FROM public._changelog"
_PAGE = (
    "SELECT id, timestamp, schema_name, table_name, operation, row_id, summary, changed_fields"
    " FROM public._changelog WHERE id > %s ORDER BY id LIMIT %s"
)


class ChangelogError(Exception):
    """The database could not be read."""


class Changelog:
    """See the module.

    Args:
        url: Of the database. It is shown nowhere.
        limits: How long it may take.
    """

    def __init__(self, url: str, limits: GatewayLimits) -> None:
        self._url = url
        self._limits = limits
        self._positions = _Line(url, limits)
        self._pages = _Line(url, limits)
        self._asking: asyncio.Task[int | None] | None = None
        self._next: asyncio.Task[int | None] | None = None
        self._quiet_until = 0.0
        self.error: str | None = None
        """Why it could not be read the last time."""

    async def position(self) -> int | None:
        """The last change's id, read after this was called; None while the database does not answer. Callers at once share one query."""
        if asyncio.get_running_loop().time() < self._quiet_until:
            return None
        if self._asking is None or self._asking.done():
            self._asking = asyncio.ensure_future(self._position())
            return await asyncio.shield(self._asking)
        if self._next is None or self._next.done():
            self._next = asyncio.ensure_future(self._after(self._asking))
        return await asyncio.shield(self._next)

    async def changes(self, after_id: int, limit: int) -> tuple[list[dict[str, Any]], bool]:
        """Changes after an id, oldest first, and whether there are more.

        Raises:
            ChangelogError: The database does not answer.
        """
        rows = await self._pages.rows(_PAGE, (after_id, limit + 1))
        found = [
            {
                "id": row[0],
                "timestamp": timestamp(row[1]) if hasattr(row[1], "astimezone") else row[1],
                "schema_name": row[2],
                "table_name": row[3],
                "operation": row[4],
                "row_id": row[5],
                "summary": row[6],
                "changed_fields": row[7],
            }
            for row in rows[:limit]
        ]
        return found, len(rows) > limit

    async def close(self) -> None:
        """Closes the connections."""
        await self._positions.close()
        await self._pages.close()

    async def _after(self, running: asyncio.Task[int | None]) -> int | None:
        await asyncio.wait([running])
        self._asking = asyncio.ensure_future(self._position())
        return await asyncio.shield(self._asking)

    async def _position(self) -> int | None:
        try:
            rows = await self._positions.rows(_POSITION, ())
        except ChangelogError as error:
            if self.error is None:
                log.warning("calls are not attributed to changes of the database: %s", error)
            self.error = str(error)
            self._quiet_until = asyncio.get_running_loop().time() + self._limits.reopen_max_seconds
            return None
        self.error = None
        return int(rows[0][0])


class _Line:
    """One connection, made anew after a fault."""

    def __init__(self, url: str, limits: GatewayLimits) -> None:
        self._url = url
        self._limits = limits
        self._lock = asyncio.Lock()
        self._connection: AsyncConnection[tuple[Any, ...]] | None = None

    async def rows(self, query: str, parameters: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        import psycopg

        try:
            async with asyncio.timeout(self._limits.changelog_seconds), self._lock:
                if self._connection is None or self._connection.closed:
                    self._connection = await psycopg.AsyncConnection.connect(self._url, autocommit=True)
                cursor = await self._connection.execute(query.encode(), parameters)
                return await cursor.fetchall()
        except TimeoutError as error:
            await self.close()
            raise ChangelogError(f"the database did not answer within {self._limits.changelog_seconds:g} s") from error
        except psycopg.Error as error:
            await self.close()
            # Only the kind: a message may hold the URL.
            raise ChangelogError(f"the database could not be read: {type(error).__name__}") from error

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()
