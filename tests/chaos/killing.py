"""The killer: forks a process that works on a run, kills it at a seeded moment, lets the next one go on, and judges the end."""

from __future__ import annotations

import asyncio
import json
import os
import random
import select
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.chaos.victim import judge, live

ROUNDS = 12
"""Kills of one run at most; then it is let alone."""
PATIENCE_SECONDS = 60.0


@dataclass(frozen=True)
class Case:
    """One run that is killed a few times."""

    seed: int
    kills: int
    wrong: tuple[str, ...]
    seconds: float


def preload(kind: str) -> None:
    """Imports what the children need once: they are forked, and their moments are spent on the run instead."""
    for name in ("agent_env.sandboxes.local.provider", "agent_env.verifiers.verify_sandbox", "agent_env.stores.sqlite"):
        import_module(name)
    if kind == "postgres":
        for name in ("sqlalchemy.dialects.postgresql.psycopg", "agent_env.stores.postgres"):
            import_module(name)


def measured(root: Path, url: str) -> float:
    """How long an undisturbed process takes, which is what moments are drawn from."""
    (root / "outbox").mkdir(parents=True)
    begun = time.monotonic()
    code, _ = _forked(lambda: live(root, url), None)
    if code != 0:
        raise AssertionError("an undisturbed run failed")
    seconds = time.monotonic() - begun
    _, answer = _forked(lambda: judge(root, url), None)
    if answer.get("wrong", ["it could not be judged"]):
        raise AssertionError(f"an undisturbed run is wrong: {answer}")
    return seconds


def tried(root: Path, url: str, *, seed: int, whole_seconds: float, kills: int) -> Case:
    """One run: killed up to `kills` times, then finished and judged."""
    (root / "outbox").mkdir(parents=True)
    chance = random.Random(seed)
    begun = time.monotonic()
    done = 0
    for _ in range(ROUNDS):
        moment = chance.uniform(0, whole_seconds) if done < kills else None
        code, _ = _forked(lambda: live(root, url), moment)
        if code == 0:
            break
        if code != -signal.SIGKILL:
            return Case(seed, done, (f"a process ended with {code}",), time.monotonic() - begun)
        done += 1
    _, answer = _forked(lambda: judge(root, url), None)
    wrong = tuple(answer.get("wrong", ["it could not be judged"]))
    return Case(seed, done, wrong, time.monotonic() - begun)


def _forked(work: Callable[[], Coroutine[Any, Any, Any]], moment: float | None) -> tuple[int, dict[str, Any]]:
    """Runs `work` in a child; kills it after `moment` seconds. Returns its exit code (negative: the signal) and its answer."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        _child(work, writing)
    os.close(writing)
    watched = os.pidfd_open(pid)
    try:
        ended, _, _ = select.select([watched], [], [], PATIENCE_SECONDS if moment is None else moment)
        if not ended:
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        if not ended and moment is None:
            return 1, {"wrong": [f"a process did not end within {PATIENCE_SECONDS:g} s"]}
        with os.fdopen(reading) as stream:
            text = stream.read() if ended else ""
        return os.waitstatus_to_exitcode(status), json.loads(text or "{}")
    finally:
        os.close(watched)


def _child(work: Callable[[], Coroutine[Any, Any, Any]], writing: int) -> None:
    code = 1
    try:
        os.setpgid(0, 0)
        answer = asyncio.run(work())
        with os.fdopen(writing, "w") as stream:
            json.dump(answer or {}, stream)
        code = 0
    except BaseException:  # noqa: BLE001 - the child must not return into the killer's code
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def folder() -> tempfile.TemporaryDirectory[str]:
    """A case's own folder."""
    return tempfile.TemporaryDirectory(prefix="agentenv-chaos-")
