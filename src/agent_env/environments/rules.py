"""Who may use which tools of a lone server: it keeps that in its memory alone, so it is told again when it was started again, and when a
command comes back to it. Behind a gateway the gateway keeps it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any, Protocol, runtime_checkable

from agent_env_sdk.wire.names import DISABLE_TOOL, ENABLE_TOOL

from agent_env.documents.updates import Json
from agent_env.environments.contract import LiveEnvironment

URIS = {"disable": DISABLE_TOOL, "enable": ENABLE_TOOL}
"""Action of a change → the extension that takes it."""


@runtime_checkable
class _Alive(Protocol):
    """An environment that can say which life of each part stands (`started`), and what became of others (`ended`)."""

    async def life(self) -> Any: ...


async def tell_again(live: LiveEnvironment, changes: Sequence[Mapping[str, Json]], told: MutableMapping[str, str]) -> None:
    """Tells a lone server all that was changed for it, in order, unless this process told this life of it already.

    Args:
        live: The environment.
        changes: What steps recorded (`tool_access_changes`), of any environment.
        told: Environment → the life of it that was told last; kept by the caller for as long as its process lives.

    Raises:
        EnvironmentFailedError: The server refuses.
        EnvironmentUnreachableError: It does not answer.
    """
    own = [change for change in changes if change.get("env_id") == live.record.env_id and change.get("action") in URIS]
    if live.has_gateway or not own:
        return
    life = await live.life() if isinstance(live, _Alive) else None
    if life is not None and life.ended:
        return  # whoever uses it is told what became of it
    key = live.record.instance_id or live.record.env_id
    now = json.dumps(dict(life.started), sort_keys=True) if life is not None else ""
    if told.get(key) == now:
        return
    for change in own:
        action = str(change["action"])
        await live.control.invoke(URIS[action], {"role": change["role"], "tools": list(change["tools_requested"])}, method=action)
    told[key] = now
