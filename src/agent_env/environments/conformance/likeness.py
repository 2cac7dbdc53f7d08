"""Whether two exports say the same (9.7): numbers that are spelled otherwise, moments, absent and empty values, and the order of rows count
as equal.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

Json = Any
_EMPTY: tuple[Json, ...] = (None, "", {}, [])
_DECIMALS = 4


def differences(first: Sequence[Mapping[str, Json]], second: Sequence[Mapping[str, Json]]) -> list[str]:
    """What parts of a second export lack or have otherwise, each as a path and a reason."""
    if len(first) != len(second):
        return [f"$: {len(first)} parts became {len(second)}"]
    found = []
    for index, (one, other) in enumerate(zip(first, second, strict=True)):
        found += list(_compare(_content(one), _content(other), f"$[{index}]"))
    return found


def _content(part: Mapping[str, Json]) -> Json:
    match part.get("kind"):
        case "data":
            return part.get("data")
        case "text":
            return part.get("text")
    return {"file": (part.get("file") or {}).get("bytes")}


def _compare(one: Json, other: Json, path: str) -> Iterator[str]:
    if _plain(one) == _plain(other):
        return
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        for key, value in one.items():
            yield from _compare(value, other.get(key), f"{path}.{key}")
    elif isinstance(one, Sequence) and isinstance(other, Sequence) and not isinstance(one, str) and not isinstance(other, str):
        if len(one) != len(other):
            yield f"{path}: {len(one)} rows became {len(other)}"
            return
        left, right = sorted(one, key=_order), sorted(other, key=_order)
        for index, (mine, its) in enumerate(zip(left, right, strict=True)):
            yield from _compare(mine, its, f"{path}[{index}]")
    elif one in _EMPTY and other in _EMPTY:
        return
    else:
        yield f"{path}: {_short(one)} became {_short(other)}"


def _plain(value: Json) -> Json:
    """A value as it is compared: numbers in text as numbers, moments as instants."""
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int | float):
        return round(float(value), _DECIMALS)
    if isinstance(value, str):
        return _number(value)
    return value


def _number(text: str) -> Json:
    try:
        return round(float(text), _DECIMALS)
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return text
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC).isoformat()


def _order(value: Json) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _short(value: Json) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 80 else f"{text[:77]}…"
