"""Debug logs on standard error, for our own loggers only, without secrets."""

from __future__ import annotations

import logging

from agent_env.cli.state import State


class _Redacting(logging.Formatter):
    def __init__(self, state: State) -> None:
        super().__init__("%(levelname)s %(name)s: %(message)s")
        self._state = state

    def format(self, record: logging.LogRecord) -> str:
        return self._state.redact(super().format(record))


def show_debug_logs(state: State) -> None:
    """Shows what `agent_env` loggers say; other packages keep quiet (their debug logs hold headers and keys)."""
    logger = logging.getLogger("agent_env")
    if not logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(_Redacting(state))
        logger.addHandler(handler)
        logger.setLevel(logging.DEBUG)
