"""Holds the listening sockets and has one server process on them. When that process dies another one takes its place at once: to a client
that connects meanwhile the gateway was only slow.

The server is forked, so that it starts with everything imported. This process runs no loop and no thread.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Sequence

from agent_env.errors import ConfigError
from agent_env.gateway.config import Settings, door_address
from agent_env.gateway.server import serve

DOORS_FILE = "doors.json"
log = logging.getLogger("agent_env.gateway")


def supervise(settings: Settings) -> int:
    """Serves until SIGTERM or SIGINT. Gives the exit code.

    Raises:
        ConfigError: A door can't be opened.
    """
    agents = [_listen(door, settings) for door in settings.config.agent_doors]
    controls = [_listen(door, settings) for door in settings.config.control_doors]
    _tell_doors(settings, agents, controls)
    return _Supervisor(settings, agents, controls).run()


class _Supervisor:
    def __init__(self, settings: Settings, agents: Sequence[socket.socket], controls: Sequence[socket.socket]) -> None:
        self._settings = settings
        self._agents = agents
        self._controls = controls
        self._stopping = False
        self._child = 0
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        self._alive_read, self._alive_write = os.pipe()
        """The server reads the one, whose other end only this process holds: it ends when this process does, however that ends."""

    def run(self) -> int:
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        limits = self._settings.limits
        pause = limits.restart_first_seconds
        while not self._stopping:
            began = time.monotonic()
            self._child = self._fork()
            code = self._reap()
            if self._stopping:
                return 0
            lived = time.monotonic() - began
            pause = limits.restart_first_seconds if lived > limits.restart_max_seconds else min(pause * 2, limits.restart_max_seconds)
            log.error("the server process ended (%s) after %.1f s; another one starts in %.2f s", code, lived, pause)
            self._rest(pause)
        return 0

    def _stop(self, _number: int, _frame: object) -> None:
        self._stopping = True
        if self._child:
            os.kill(self._child, signal.SIGTERM)

    def _fork(self) -> int:
        pid = os.fork()
        if pid:
            return pid
        signal.set_wakeup_fd(-1)
        code = 1
        try:
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            if self._stopping:
                os._exit(0)
            os.close(self._alive_write)
            asyncio.run(serve(self._settings, self._agents, self._controls, self._alive_read))
            code = 0
        finally:  # the process ends here whatever it was: its parent's code must not run on in it
            if code:
                traceback.print_exc()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def _reap(self) -> int:
        """Waits for the server's end; one that was told to stop has a limited time for it."""
        while True:
            pid, status = os.waitpid(self._child, os.WNOHANG)
            if pid:
                self._child = 0
                return os.waitstatus_to_exitcode(status)
            if not self._wait(None if not self._stopping else self._settings.limits.drain_seconds + self._settings.limits.stop_seconds):
                os.kill(self._child, signal.SIGKILL)

    def _rest(self, seconds: float) -> None:
        """Until so much time has passed, whatever signals come, or until it is told to stop."""
        until = time.monotonic() + seconds
        while not self._stopping and (left := until - time.monotonic()) > 0:
            self._wait(left)

    def _wait(self, seconds: float | None) -> bool:
        """Until a signal, or for so long. Whether there was one."""
        ready, _, _ = select.select([self._wake_read], [], [], seconds)
        if ready:
            os.read(self._wake_read, 512)
        return bool(ready)


def _listen(door: str, settings: Settings) -> socket.socket:
    host, port = door_address(door)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # asyncio sends small answers at once only where it is named
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind((host, port))
        made.listen(settings.limits.backlog)
    except OSError as error:
        raise ConfigError(f"the door {door} can't be opened: {error.strerror}", hint="is something else there?") from error
    made.setblocking(False)
    return made


def _tell_doors(settings: Settings, agents: Sequence[socket.socket], controls: Sequence[socket.socket]) -> None:
    """Writes where the doors are; ports may have been chosen by the system."""
    spelled = {name: [_spelled(each) for each in sockets] for name, sockets in (("agent_doors", agents), ("control_doors", controls))}
    path = settings.state / DOORS_FILE
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps({**spelled, "pid": os.getpid()}))
    fresh.rename(path)


def _spelled(made: socket.socket) -> str:
    host, port = made.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
