"""A command on a real terminal, as a person has it: a session of its own, whose keys are signals."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence
from types import TracebackType

from tests.busy import within
from tests.cli.conftest import AGENT_ENV, Cli

CTRL_C = b"\x03"
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class OnTerminal:
    """`agent-env` in the foreground of a pseudo-terminal.

    Args:
        cli: Whose home, folder and environment it has.
        argv: Its arguments.
        program: What runs instead of the command.
        columns: How wide the terminal is; it has ten rows.
        env: What is different in its environment.
        seconds: How long it may take on a quiet machine.
    """

    def __init__(
        self,
        cli: Cli,
        *argv: str | os.PathLike[str],
        program: Sequence[str] = (str(AGENT_ENV),),
        columns: int = 100,
        env: Mapping[str, str | None] | None = None,
        seconds: float = 30,
    ) -> None:
        self.seen = ""
        self._until = time.monotonic() + within(seconds)
        environ = cli.environ({"TERM": "xterm", "COLUMNS": None, "LINES": None, "NO_COLOR": None, **(env or {})})
        self.keys, follower = pty.openpty()
        fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 10, columns, 0, 0))
        words = ["setsid", "--ctty", *program, *map(os.fspath, argv)]
        self._process = subprocess.Popen(words, stdin=follower, stdout=follower, stderr=follower, env=environ, cwd=cli.cwd)
        os.close(follower)

    def __enter__(self) -> OnTerminal:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        os.close(self.keys)
        self._process.kill()
        self._process.wait(within(10))

    @property
    def text(self) -> str:
        """What was shown, without the moves of the cursor."""
        return ESCAPE.sub("", self.seen).replace("\r", "")

    def type(self, keys: bytes) -> None:
        """Types something."""
        os.write(self.keys, keys)

    def until(self, pattern: str) -> str:
        """Reads on until this is shown, and returns what was shown so far."""
        while not re.search(pattern, self.text):
            assert self._read(), f"it ended without {pattern!r}: {self.seen}"
        return self.text

    def end(self) -> tuple[int, str]:
        """Its exit code, and all that it showed."""
        while self._read():
            pass
        return self._process.wait(max(1.0, self._until - time.monotonic())), self.text

    def _read(self) -> bool:
        ready = select.select([self.keys], [], [], max(0.0, self._until - time.monotonic()))[0]
        assert ready, f"nothing more comes: {self.seen}"
        try:
            got = os.read(self.keys, 65536)
        except OSError:  # the other side was closed
            return False
        self.seen += got.decode(errors="replace")
        return bool(got)
