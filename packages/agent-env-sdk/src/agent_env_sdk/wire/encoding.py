"""JSON as bytes: one way to write it, wherever it goes onto a wire or into a file."""

from __future__ import annotations

import json


def json_bytes(value: object, *, indent: int | None = None, allow_nan: bool = True) -> bytes:
    """JSON in UTF-8, readable as it is: only what has to be is escaped.

    Half a character, as programs that cut texts by their code units leave it, has no UTF-8 and stays the escape that it came as.

    Args:
        value: What is written.
        indent: Spaces a level, for people; without them it takes one line without a space.
        allow_nan: Lets numbers pass that JSON has no spelling for.

    Raises:
        TypeError: It holds what JSON can't say.
        ValueError: It holds such a number, and none may pass; or it holds itself.
    """
    separators = (",", ":") if indent is None else None
    text = json.dumps(value, ensure_ascii=False, indent=indent, separators=separators, allow_nan=allow_nan)
    return text.encode("utf-8", "backslashreplace")
