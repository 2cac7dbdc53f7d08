"""How triggers read calls: paths into their values, predicates over them, and templates that are filled from them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from agent_env.gateway.defaults import GatewayLimits
from agent_env.gateway.triggers import patterns

if TYPE_CHECKING:
    from agent_env.gateway.triggers.grammar import Extract, Predicate

ROOTS = ("args", "result")
_SEGMENT = re.compile(r"(\w+)((?:\[(?:\d+|\*)\])*)")
_INDEX = re.compile(r"\[(\d+|\*)\]")
_PLACEHOLDER = re.compile(r"\$\{([\w.\[\]*]+\??)\}")
_LOOKS_LIKE_ONE = re.compile(r"\$\{[^{}]*\}?")
_EMPTY: tuple[Any, ...] = (None, "", [])
_DROP = object()
_SHOWN_KEYS = frozenset({"action", "createdTime", "fileName", "kind", "mimeType", "modifiedTime", "name", "role", "title", "type"})
_ID_KEY = re.compile(r"(?:^id|Id|_id)$")
_SHOWN_CHARACTERS = 200


class UnfilledError(LookupError):
    """A placeholder that must have a value has none."""


def check_path(path: str) -> None:
    """Raises ValueError where the path can't be followed."""
    for segment in path.split("."):
        if not _SEGMENT.fullmatch(segment):
            raise ValueError(f"{segment!r} is no step of a path; expected names with [n] or [*], separated by dots")


def follow(value: Any, path: str) -> Any:
    """What is at the path; None for nothing. `[*]` is the list itself."""
    for segment in path.split("."):
        match = _SEGMENT.fullmatch(segment)
        if match is None or not isinstance(value, Mapping) or match[1] not in value:
            return None
        value = value[match[1]]
        for index in _INDEX.findall(match[2]):
            if index == "*":
                continue
            if not isinstance(value, list) or int(index) >= len(value):
                return None
            value = value[int(index)]
    return value


def rooted(name: str) -> tuple[str | None, str]:
    """`args.<path>` and `result.<path>` as root and path; anything else has no root."""
    root, _, path = name.partition(".")
    return (root, path) if root in ROOTS else (None, "")


def where_value(context: Mapping[str, Any], key: str) -> Any:
    """What a `where` key names: an argument at the top, or a path into arguments or result."""
    root, path = rooted(key)
    if root is not None and path:
        return follow(context.get(root), path)
    arguments = context.get("args")
    return arguments.get(key) if isinstance(arguments, Mapping) else None


async def holds(predicate: Predicate, value: Any, limits: GatewayLimits) -> bool:
    """Whether the predicate is true of the value."""
    if predicate.regex is not None:
        return await patterns.found(predicate.regex, value if isinstance(value, str) else json.dumps(value), limits)
    if predicate.exists is not None:
        return (value not in _EMPTY) == predicate.exists
    return bool(value == predicate.equals and isinstance(value, bool) == isinstance(predicate.equals, bool))


async def all_hold(where: Mapping[str, Predicate], context: Mapping[str, Any], limits: GatewayLimits) -> bool:
    """Whether every predicate of a `where` is true of the call."""
    for key, predicate in where.items():
        if not await holds(predicate, where_value(context, key), limits):
            return False
    return True


async def extracted(extract: str | Extract | None, value: Any, text: str, limits: GatewayLimits) -> Any:
    """What a check's step takes out of a tool's answer."""
    if extract is None:
        return text
    if isinstance(extract, str):
        return follow(value, extract)
    items = follow(value, extract.path)
    for item in items if isinstance(items, list) else ():
        if isinstance(item, Mapping):
            for key, predicate in extract.match.items():
                if not await holds(predicate, item.get(key), limits):
                    break
            else:
                return item.get(extract.take) if extract.take else item
    return None


def is_nothing(value: Any) -> bool:
    """Whether a value counts as absent."""
    return value in _EMPTY


def result_text(result: Any) -> str:
    """The texts of a tool's result."""
    content = result.get("content") if isinstance(result, Mapping) else None
    parts = content if isinstance(content, list) else []
    return "\n".join(str(part.get("text", "")) for part in parts if isinstance(part, Mapping) and part.get("type") == "text")


def result_value(result: Any) -> Any:
    """A tool's result as triggers read it: its text as JSON where it is some, else the text; None for none."""
    text = result_text(result)
    if not text:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


# templates


def check_template(value: Any, roots: tuple[str, ...]) -> None:
    """Raises ValueError where a placeholder could never be filled.

    Args:
        value: Arguments of a tool.
        roots: What the trigger's cause carries: `args` and `result`, `args` alone, or neither.
    """
    for text in _texts(value):
        for shape in _LOOKS_LIKE_ONE.findall(text):
            if not _PLACEHOLDER.fullmatch(shape):
                raise ValueError(f"{shape!r} is no placeholder; expected ${{args.<path>}}, ${{result.<path>}} or ${{<binding>}}")
        for name in _PLACEHOLDER.findall(text):
            _check_placeholder(name.removesuffix("?"), roots)


def _check_placeholder(name: str, roots: tuple[str, ...]) -> None:
    root, path = rooted(name)
    if root is None:
        if not re.fullmatch(r"\w+", name):
            raise ValueError(f"${{{name}}} names neither a binding nor a path into args or result")
    elif root not in roots:
        carried = " and ".join(roots) or "neither args nor result"
        raise ValueError(f"${{{name}}} has nothing to read: what sets this trigger off carries {carried}")
    elif path:
        check_path(path)
    elif "." in name:
        raise ValueError(f"${{{name}}} has an empty path")


def reaches_for_call(text: str) -> str | None:
    """The first placeholder-like text that means the provoking call; instructions are not filled in, so it would stay as it is."""
    for shape in _LOOKS_LIKE_ONE.findall(text):
        if re.match(r"\$\{(?:args|result)\.", re.sub(r"\s+", "", shape)):
            return str(shape)
    return None


def filled(value: Any, bindings: Mapping[str, Any], context: Mapping[str, Any]) -> Any:
    """The arguments with their placeholders filled.

    Raises:
        UnfilledError: One that must have a value has none.
    """
    made = _filled(value, bindings, context)
    return value if made is _DROP else made


def _filled(value: Any, bindings: Mapping[str, Any], context: Mapping[str, Any]) -> Any:
    match value:
        case Mapping():
            made = {key: _filled(member, bindings, context) for key, member in value.items()}
            return {key: member for key, member in made.items() if member is not _DROP}
        case list():
            return [member for member in (_filled(each, bindings, context) for each in value) if member is not _DROP]
        case str():
            return _filled_text(value, bindings, context)
        case _:
            return value


def _filled_text(text: str, bindings: Mapping[str, Any], context: Mapping[str, Any]) -> Any:
    whole = _PLACEHOLDER.fullmatch(text)
    if whole is not None:
        known, value = _named(whole[1], bindings, context)
        if not known:
            return _DROP if whole[1].endswith("?") else text
        return value if rooted(whole[1].removesuffix("?"))[0] else str(value)

    def fill(match: re.Match[str]) -> str:
        known, value = _named(match[1], bindings, context)
        if not known:
            return "" if match[1].endswith("?") else match[0]
        return value if isinstance(value, str) else json.dumps(value)

    return _PLACEHOLDER.sub(fill, text)


def _named(name: str, bindings: Mapping[str, Any], context: Mapping[str, Any]) -> tuple[bool, Any]:
    bare = name.removesuffix("?")
    if bare in bindings:
        return True, bindings[bare]
    root, path = rooted(bare)
    value = None if root is None else follow(context.get(root), path) if path else context.get(root)
    if value is not None:
        return True, value
    if root is not None and not name.endswith("?"):
        raise UnfilledError(f"unresolved placeholder ${{{bare}}}")
    return False, None


def _texts(value: Any) -> Iterator[str]:
    match value:
        case Mapping():
            for member in value.values():
                yield from _texts(member)
        case list():
            for member in value:
                yield from _texts(member)
        case str():
            yield value


# what may be told of a trigger's own calls


def shapes(value: Any, key: str | None = None) -> Any:
    """Arguments as the trajectory shows those of a trigger: identifiers and kinds, and of everything else only its shape."""
    match value:
        case Mapping():
            return {name: shapes(member, name) for name, member in value.items()}
        case list():
            return [shapes(member, key) for member in value]
    shown = key is not None and (key in _SHOWN_KEYS or _ID_KEY.search(key) is not None)
    if shown and (not isinstance(value, str) or len(value) <= _SHOWN_CHARACTERS):
        return value
    return {"redacted": {"type": type(value).__name__, **({"len": len(value)} if isinstance(value, str) else {})}}
