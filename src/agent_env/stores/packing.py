"""JSON as rows keep it: as text, or, when it is large, as an object that the row refers to."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from agent_env.errors import StorageError

if TYPE_CHECKING:
    from agent_env.stores.objects import Objects

Json = Any
MARK = "@"
"""Begins a reference; no JSON text begins with it."""


def dump(value: Json) -> str:
    """Compact JSON in ASCII: every database stores it, also half surrogate pairs and NUL characters."""
    return json.dumps(value, separators=(",", ":"))


class Packing:
    """Turns values into column texts and back.

    Args:
        objects: Where large values go; None keeps everything in its row.
        inline_bytes: What a row holds itself.
    """

    def __init__(self, objects: Objects | None, inline_bytes: int) -> None:
        self._objects = objects
        self._inline_bytes = inline_bytes

    def pack(self, value: Json) -> str:
        """The column text of a value. Writes an object when it is large."""
        text = dump(value)
        return self._moved(text) if self._is_large(text) else text

    async def apack(self, value: Json) -> str:
        """Like `pack`, with the object written by a worker thread."""
        text = dump(value)
        if not self._is_large(text):
            return text
        import asyncio

        return await asyncio.to_thread(self._moved, text)

    def unpack(self, text: str | None, default: Json = None) -> Json:
        """The value of a column text.

        Raises:
            StorageError: Its object is missing or damaged, or the text itself is.
        """
        if text is None:
            return default
        if text.startswith(MARK):
            if self._objects is None:
                raise StorageError(f"a large result is kept as object {text[1:]}, and no object store is open", concerns=text[1:])
            text = self._objects.read(text[1:]).decode("ascii")
        try:
            return json.loads(text)
        except ValueError as error:
            raise StorageError(f"the run database holds JSON that can't be read: {error}") from error

    def _is_large(self, text: str) -> bool:
        return self._objects is not None and len(text) > self._inline_bytes

    def _moved(self, text: str) -> str:
        if self._objects is None:
            return text
        return MARK + self._objects.put(text.encode("ascii"), media_type="application/json").url
