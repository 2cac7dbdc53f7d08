"""The transcript of a run's calls: a line of JSON for each, without secrets, bounded. For people and for whoever looks into a score."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from agent_env.errors import StorageError

Json = Any
LEFT_OUT = "left out: the transcript has reached its limit"


class Transcript:
    """One file, which several processes may append to.

    Args:
        path: The file.
        most_bytes: Above that only the heads of calls are written.
        redact: Takes secrets out.
    """

    def __init__(self, path: Path, most_bytes: int, redact: Callable[[Json], Json]) -> None:
        self._path = path
        self._most = most_bytes
        self._redact = redact

    def write(self, head: Mapping[str, Json], request: Json, answer: bytes) -> None:
        """Appends a call.

        Raises:
            StorageError: It can't be written.
        """
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                room = self._most - os.fstat(handle).st_size
                entry = {**head, "request": request, "answer": answer.decode(errors="replace")}
                line = self._line(entry)
                if len(line) > room:
                    line = self._line({**head, "request": LEFT_OUT, "answer": LEFT_OUT})
                os.write(handle, line)
            finally:
                os.close(handle)
        except OSError as error:
            raise StorageError(f"can't write the transcript {self._path}: {error.strerror}", concerns=str(self._path)) from error

    def _line(self, entry: Mapping[str, Json]) -> bytes:
        return json.dumps(self._redact(entry), separators=(",", ":")).encode() + b"\n"
