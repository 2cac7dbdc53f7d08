"""An output that takes no more is said to be full, in a sentence and with exit code 1; it is no fault of ours to report."""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
import termios
import time
from pathlib import Path

import pytest

from tests.busy import within
from tests.cli.conftest import AGENT_ENV, LONGEST, Cli

FULL = Path("/dev/full")
COMMANDS = ["--version", "--help", "run --help", "bundle show hello", "bundle show hello --json", "run hello", "run hello --json",
            "config show", "completion bash", "secret list --json"]  # fmt: skip

pytestmark = pytest.mark.skipif(not FULL.exists(), reason="agentenv-capability-missing: dev_full")


def said(cli: Cli, command: str, *, full: str) -> tuple[int, str]:
    with FULL.open("wb") as sink:
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, full: sink}
        done = subprocess.run([AGENT_ENV, *command.split()], cwd=cli.cwd, env=cli.environ(), timeout=LONGEST, check=False, **streams)
    return done.returncode, ((done.stdout or b"") + (done.stderr or b"")).decode()


@pytest.mark.parametrize("command", COMMANDS)
def test_a_full_output_is_said_to_be_full(cli: Cli, command: str) -> None:
    code, text = said(cli, command, full="stdout")
    assert code == 1, text
    assert "error: the output can't be written: there is no space left on it" in text
    assert "report" not in text
    assert "Traceback" not in text


@pytest.mark.parametrize(("command", "expected"), [("run hello", 0), ("runs show nothing", 2), ("run hello --no-such", 2)])
def test_errors_that_can_not_be_written_change_nothing(cli: Cli, command: str, expected: int) -> None:
    code, text = said(cli, command, full="stderr")
    assert (code, "Traceback" in text) == (expected, False), text


def waiting(descriptor: int) -> int:
    """The bytes that may be read from a pipe."""
    return struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4)))[0]


@pytest.mark.skipif(not hasattr(fcntl, "F_SETPIPE_SZ"), reason="agentenv-capability-missing: pipe_sizes")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_an_output_that_does_not_wait_is_waited_for(cli: Cli, unbuffered: str) -> None:
    environ = {**cli.environ(), "PYTHONUNBUFFERED": unbuffered}
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    os.set_blocking(writer, False)
    with (
        subprocess.Popen([AGENT_ENV, "config", "explain"], cwd=cli.cwd, env=environ, stdout=writer) as process,
        os.fdopen(reader, "rb") as out,
    ):
        os.close(writer)
        end = time.monotonic() + within(10)
        while waiting(reader) < 4000 and process.poll() is None and time.monotonic() < end:
            time.sleep(0.01)
        text = out.read()
    assert (process.returncode, len(text) > 8192) == (0, True)
    assert text.decode() == cli("config", "explain").out
