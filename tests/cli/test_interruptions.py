"""Ctrl-C and SIGTERM before a command is under way: while modules are imported, the configuration is read, the stores are opened."""

from __future__ import annotations

import random
import signal
import subprocess
import sys

import pytest

from agent_env.cli import boundary
from agent_env.cli.interruptions import Interruptions
from tests.cli.conftest import Cli

COUNTED = """
import os, sys
from agent_env.cli import main
left, number = int(sys.argv[1]), int(sys.argv[2])
def count(frame, event, argument):
    global left
    left -= 1
    if not left:
        sys.setprofile(None)
        os.kill(os.getpid(), number)
del sys.argv[1:3]
sys.setprofile(count)
sys.exit(main())
"""
"""Sends itself a signal at a moment that is counted in calls, so that it is the same on a machine of any speed."""
CALLS = {"--help": 60_000, "config explain": 120_000, "runs list": 250_000, "run hello": 400_000}
"""Of each command twice as many come before it ends."""
SEED = 20_261_130


@pytest.mark.parametrize("command", CALLS)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_while_a_command_starts_is_told_in_a_line_at_most(cli: Cli, command: str, number: signal.Signals) -> None:
    moment = random.Random(f"{SEED} {command} {number}").randrange(20_000, CALLS[command])
    argv = [sys.executable, "-c", COUNTED, str(moment), str(int(number)), *command.split()]
    done = subprocess.run(argv, cwd=cli.cwd, env=cli.environ(), capture_output=True, text=True, timeout=cli.longest, check=False)
    assert done.returncode == 128 + number, f"at call {moment}: {done.stderr}"
    assert done.stderr in ("", "error: interrupted\n"), f"at call {moment}"


def test_an_interruption_that_nobody_can_catch_ends_the_process() -> None:
    program = """
import signal
from agent_env.cli.interruptions import Interruptions
Interruptions().begin()
class Finalized:
    def __del__(self):
        signal.raise_signal(signal.SIGTERM)
Finalized()
print("it went on")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (143, "", "")


def test_what_an_interruption_was_wrapped_in_is_the_interruption_still(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def wrapping(*_: object) -> int:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as error:
            raise RuntimeError("Error calling __set_name__ on 'member' instance 'a' in 'b'") from error

    told = Interruptions()
    told.first = signal.SIGTERM
    monkeypatch.setattr(boundary, "_invoke", wrapping)
    assert boundary.run(["runs", "list"], told) == 143
    assert capsys.readouterr().err == "error: interrupted\n"
