"""The real command without its start-up: a process of its own, forked from an interpreter that has imported `agent_env` already.

Most of what a short command costs is the import of what it uses (0.2 to 0.5 s of a core), and the suite gives thousands. What runs is the
console script's `main` with the arguments, environment, folder and streams that it was given, and it ends as its interpreter ends.
A command that is started in any other way (a shell, a kill, a terminal, the documentation) starts by itself, and so does every one when
`TESTS_COLD=1` is set.
"""

from __future__ import annotations

import gc
import json
import os
import pkgutil
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

AGENT_ENV = Path(sys.executable).with_name("agent-env")
FIXED_AT_START = ("PYTHON", "LC_", "LANG", "TZ", "LD_", "MALLOC_")
"""What an interpreter reads when it starts: a command with other values than the server's starts by itself."""
FOUND_LATER = "PYTHONPATH"
"""But this one, which is a list of folders to search when something is imported."""
NOT_IMPORTED = ("__main__", "run_code_runner", "migrations", "conformance")
"""Modules that act when they are imported, or that no command imports."""


def run(argv: Sequence[str], *, cwd: Path, env: Mapping[str, str], stdin: bytes, seconds: float) -> subprocess.CompletedProcess[bytes]:
    """Runs `agent-env` to its end, as `subprocess.run` would with all its streams captured.

    Raises:
        subprocess.TimeoutExpired: It has not ended in time, and was killed.
    """
    if os.environ.get("TESTS_COLD") or _fixed(env) != _server().fixed:
        return subprocess.run([AGENT_ENV, *argv], cwd=cwd, env=env, input=stdin, capture_output=True, timeout=seconds, check=False)
    return _server().run(argv, cwd, env, stdin, seconds)


def _fixed(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name.startswith(FIXED_AT_START) and name != FOUND_LATER}


@cache
def _server() -> _Server:
    return _Server()


class _Server:
    """The interpreter that forks, as its clients see it. It ends with the process that has started it."""

    def __init__(self) -> None:
        # Whatever a fixture has put on the path of this process is no command's, unless it is told so itself.
        env = {name: value for name, value in os.environ.items() if name != FOUND_LATER}
        self.fixed = _fixed(env)
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            # Its streams are pipes, as those of its children will be.
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                env=env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=[theirs.fileno()],
            )

    def run(
        self, argv: Sequence[str], cwd: Path, env: Mapping[str, str], stdin: bytes, seconds: float
    ) -> subprocess.CompletedProcess[bytes]:
        request = json.dumps({"argv": list(argv), "cwd": str(cwd), "env": dict(env)}).encode()
        with ExitStack() as held:
            ends = [_Pipe(held) for _ in range(4)]
            body = os.memfd_create("request")
            try:
                os.pwrite(body, request, 0)
                given = [ends[0].read, *(each.write for each in ends[1:])]
                socket.send_fds(self._control, [b"run"], [body, *given])
            finally:
                os.close(body)
            for each, theirs in zip(ends, given, strict=True):
                each.close(theirs)
            out, err, told = _exchanged(ends[0], stdin, ends[1:], time.monotonic() + seconds)
        pid, _, code = told.decode().partition(" ")
        if not code:
            if pid:
                os.kill(int(pid), signal.SIGKILL)
            raise subprocess.TimeoutExpired([str(AGENT_ENV), *argv], seconds, out, err)
        return subprocess.CompletedProcess([str(AGENT_ENV), *argv], int(code), out, err)

    def close(self) -> None:
        """Ends it; what it has forked goes on."""
        self._control.close()
        self._process.communicate()


class _Pipe:
    def __init__(self, held: ExitStack) -> None:
        self.read, self.write = os.pipe()
        self._open = {self.read, self.write}
        held.callback(self._close_all)

    def close(self, end: int) -> None:
        self._open.discard(end)
        os.close(end)

    def _close_all(self) -> None:
        for end in tuple(self._open):
            self.close(end)


def _exchanged(to: _Pipe, stdin: bytes, sources: Sequence[_Pipe], until: float) -> list[bytes]:
    """What is read from each source until all are closed, or until then, while the input is written."""
    found = {each.read: bytearray() for each in sources}
    with selectors.DefaultSelector() as waiting:
        for each in found:
            waiting.register(each, selectors.EVENT_READ)
        os.set_blocking(to.write, False)
        waiting.register(to.write, selectors.EVENT_WRITE)
        while waiting.get_map() and (left := until - time.monotonic()) > 0:
            for key, _ in waiting.select(left):
                if key.fd in found:
                    if data := os.read(key.fd, 1 << 16):
                        found[key.fd] += data
                    else:
                        waiting.unregister(key.fd)
                    continue
                with suppress(BrokenPipeError):
                    stdin = stdin[os.write(key.fd, stdin) :] if stdin else b""
                    if stdin:
                        continue
                waiting.unregister(key.fd)
                to.close(key.fd)
    return [bytes(each) for each in found.values()]


def _serve(control: socket.socket) -> dict[str, Any] | None:
    """Forks for every request. Returns once in each child, with its request, and with None where nobody can ask any more."""
    children: dict[int, tuple[int, int]] = {}
    with selectors.DefaultSelector() as waiting:
        waiting.register(control, selectors.EVENT_READ)
        while True:
            for key, _ in waiting.select():
                if key.fd in children:
                    pid, told = children.pop(key.fd)
                    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                    with suppress(BrokenPipeError):
                        os.write(told, f" {code}".encode())
                    waiting.unregister(key.fd)
                    os.close(key.fd)
                    os.close(told)
                    continue
                message, given, _, _ = socket.recv_fds(control, 16, 5)
                if not message:
                    return None
                body, *streams, told = given
                request = json.loads(os.pread(body, os.fstat(body).st_size, 0))
                os.close(body)
                pid = os.fork()
                if pid == 0:
                    for fd in [told, *children, *(each for _, each in children.values())]:
                        os.close(fd)
                    control.close()
                    for number, stream in enumerate(streams):
                        os.dup2(stream, number)
                        os.close(stream)
                    return dict(request)
                for stream in streams:
                    os.close(stream)
                os.write(told, str(pid).encode())
                child = os.pidfd_open(pid)
                children[child] = (pid, told)
                waiting.register(child, selectors.EVENT_READ)


def _import_all() -> None:
    import agent_env

    for module in pkgutil.walk_packages(agent_env.__path__, "agent_env."):
        if not set(module.name.split(".")) & set(NOT_IMPORTED):
            import_module(module.name)
    assert threading.active_count() == 1, "a process with threads is not forked"
    gc.collect()
    gc.freeze()


def _main(control: int) -> int:
    sys.path[0] = str(AGENT_ENV.parent)  # as of the console script
    _import_all()
    request = _serve(socket.socket(fileno=control))
    if request is None:
        return 0
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.path[1:1] = [folder for folder in request["env"].get(FOUND_LATER, "").split(os.pathsep) if folder]
    sys.argv = [str(AGENT_ENV), *request["argv"]]
    from agent_env.cli import main

    return main()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        sys.exit(_main(int(sys.argv[1])))
