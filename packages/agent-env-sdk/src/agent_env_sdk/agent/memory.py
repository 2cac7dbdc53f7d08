"""What an agent remembers of its conversations: at hand while it runs, and in its folder for after a restart."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from .author import Agent
from .fleeting import fleeting_folder

REMEMBERED: Final = 1024
"""Conversations, the ones that went on last; older ones are forgotten."""
Messages = list[dict[str, Any]]


class Memory:
    """The messages of each conversation.

    Args:
        agent: Whose they are; its folder is known once it is served.
    """

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._at_hand: OrderedDict[str, Messages] = OrderedDict()

    def of(self, context_id: str) -> Messages:
        """What is remembered of a conversation; nothing of one that was forgotten."""
        if context_id not in self._at_hand:
            try:
                found = json.loads(self._file(context_id).read_bytes())
            except (OSError, ValueError):  # new, or torn by a crash
                return []
            self._at_hand[context_id] = found if isinstance(found, list) else []
        return list(self._at_hand[context_id])

    def keep(self, context_id: str, messages: Sequence[dict[str, Any]]) -> None:
        """Remembers a conversation as it stands."""
        self._at_hand[context_id] = list(messages)
        self._at_hand.move_to_end(context_id)
        _written(self._file(context_id), json.dumps(list(messages)).encode())
        while len(self._at_hand) > REMEMBERED:
            oldest, _ = self._at_hand.popitem(last=False)
            self._file(oldest).unlink(missing_ok=True)

    def _file(self, context_id: str) -> Path:
        if self._agent.state is None:
            self._agent.state = fleeting_folder(self._agent, "agent-memory-")
        return self._agent.state / "conversations" / f"{hashlib.sha256(context_id.encode()).hexdigest()[:40]}.json"


def _written(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    with os.fdopen(handle, "wb") as file:
        file.write(content)
    Path(name).replace(path)
