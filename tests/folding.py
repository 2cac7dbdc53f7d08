"""The plainest way to fold updates into a context document: what the engine's own fold is compared with."""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping

from agent_env.documents.updates import AppendRecord, ExtendMetadata, Json, SetField, SetMetadata, Update


def apply(context: MutableMapping[str, Json], updates: Iterable[Update]) -> None:
    """Folds updates into a context document, in place. Values are shared, not copied: whoever reads them must not change them."""
    for update in updates:
        match update:
            case AppendRecord(where, record):
                context.setdefault(where, []).append(dict(record))
            case SetField(name, value):
                context[name] = value
            case SetMetadata(path, value):
                _folder(context, path)[path[-1]] = value
            case ExtendMetadata(path, items):
                folder = _folder(context, path)
                existing = folder.get(path[-1])
                folder[path[-1]] = [*(existing if isinstance(existing, list) else []), *items]


def _folder(context: MutableMapping[str, Json], path: tuple[str, ...]) -> MutableMapping[str, Json]:
    folder: MutableMapping[str, Json] = context.setdefault("metadata", {})
    for name in path[:-1]:
        below = folder.get(name)
        if not isinstance(below, dict):
            below = {}
            folder[name] = below
        folder = below
    return folder
