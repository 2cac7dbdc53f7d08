"""The gateway's mark on what is passed on: who asks, in `_meta`, instead of what the asker said of itself. All else to the byte."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import count

from agent_env_sdk.wire.names import ROLE_META, SESSION_META

from agent_env.gateway import jsontext

_IDENTITY = {ROLE_META.casefold(), SESSION_META.casefold()}
_PROGRESS = "progressToken"
_META = "_meta"


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls."""

    role: str
    session: str | None = None
    """The key that servers see; None where the call has no session."""


@dataclass(frozen=True, slots=True)
class Marked:
    """Parameters that may go to a server."""

    params: str
    progress: tuple[str, str] | None
    """The progress token that stands in them, and the one (as text) that the caller knows."""
    forged: list[str]
    """What the caller had said of its own identity."""
    given: Mapping[str, str]
    """The parameters as they came, each as text."""


class Marker:
    """Marks parameters. See the module."""

    def __init__(self) -> None:
        self._tokens = count(1)

    def mark(self, caller: Caller, params: str, *, routed: Collection[str], renamed: Mapping[str, str] | None = None) -> Marked:
        """The parameters of a request as its server gets them.

        Args:
            caller: Who asks.
            params: The parameters as they came: an object.
            routed: Further keys that decide what happens, and may be given once alone.
            renamed: Members that get another value, as JSON text.

        Raises:
            jsontext.JsonTextError: It is no such object.
        """
        members, _ = jsontext.object_members(params, exact=(*routed, _META))
        by_key = {member.key: member for member in members}
        meta = by_key.get(_META)
        kept, forged, token = _kept_meta(params, meta) if meta is not None else ([], [], None)
        ours = [f"{json.dumps(ROLE_META)}:{json.dumps(caller.role)}"]
        if caller.session is not None:
            ours.append(f"{json.dumps(SESSION_META)}:{json.dumps(caller.session)}")
        progress = None
        if token is not None:
            progress = (f"agentenv-{next(self._tokens)}", token)
            ours.append(f'"{_PROGRESS}":{json.dumps(progress[0])}')
        text = "{" + ",".join([*kept, *ours]) + "}"
        given = {member.key: params[member.start : member.end] for member in members}
        if not members:
            return Marked(f'{{"{_META}":{text}}}', progress, forged, given)
        first = members[0].key_start
        edits = [(meta.start, meta.end, text)] if meta is not None else [(first, first, f'"{_META}":{text},')]
        edits += [(by_key[key].start, by_key[key].end, value) for key, value in (renamed or {}).items()]
        for start, end, replacement in sorted(edits, reverse=True):
            params = params[:start] + replacement + params[end:]
        return Marked(params, progress, forged, given)


def _kept_meta(params: str, meta: jsontext.Member) -> tuple[list[str], list[str], str | None]:
    """Of a caller's `_meta`: the members that stay as they are, those that claim an identity, and its progress token."""
    if params[meta.start] != "{":
        if params[meta.start : meta.end] == "null":
            return [], [], None
        raise jsontext.JsonTextError("params._meta is not an object")
    members, _ = jsontext.object_members(params, meta.start, exact=(_PROGRESS,))
    kept, forged, token = [], [], None
    for member in members:
        if member.key.strip().casefold() in _IDENTITY:
            forged.append(params[member.key_start : member.end])
        elif member.key == _PROGRESS:
            token = params[member.start : member.end]
        else:
            kept.append(params[member.key_start : member.end])
    return kept, forged, token
