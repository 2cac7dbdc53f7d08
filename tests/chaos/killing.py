"""The killer: forks a process that works on two runs, kills it at a seeded moment, lets the next one go on, and judges the end."""

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
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_env.keeper.client import recorded_owner
from tests.chaos.victim import RUNS, Scene, collect, judge, live

ROUNDS = 12
"""Kills of one run at most; then it is let alone."""
PATIENCE_SECONDS = 60.0
LOOK_SECONDS = 0.05
"""Between two looks for a keeper."""


@dataclass(frozen=True)
class Case:
    """Two runs that are killed together a few times."""

    seed: int
    kills: int
    """Of the command."""
    wrong: tuple[str, ...]
    seconds: float
    keeper_kills: int = 0

    @property
    def all_kills(self) -> int:
        """Of whatever was killed."""
        return self.kills + self.keeper_kills


def measured(scene: Scene) -> float:
    """How long an undisturbed process takes, which is what moments are drawn from."""
    scene.prepare()
    begun = time.monotonic()
    code, _, _ = _forked(lambda: live(scene), None)
    if code != 0:
        raise AssertionError("an undisturbed run failed")
    seconds = time.monotonic() - begun
    _, answer, _ = _forked(lambda: judge(scene), None)
    if answer.get("wrong", ["it could not be judged"]):
        raise AssertionError(f"an undisturbed run is wrong: {answer}")
    return seconds


def tried(scene: Scene, *, seed: int, whole_seconds: float, kills: int) -> Case:
    """Two runs: killed together up to `kills` times, then finished and judged. In two of three cases a collector works beside them.

    On containers, foreign things that look like ours stand beside them, and in each round the keeper is killed too.
    """
    scene.prepare()
    chance = random.Random(seed)
    begun = time.monotonic()
    done = keepers = 0
    decoys = _planted(scene)
    code = 1
    for _ in range(ROUNDS):
        moment = chance.uniform(0, whole_seconds) if done < kills else None
        keeper = (scene.root / "state", chance.uniform(0, whole_seconds / 2)) if scene.ground.decoys else None
        with _collecting(lambda: collect(scene), wanted=seed % 3 > 0):
            code, _, killed = _forked(lambda: live(scene), moment, keeper=keeper)
        keepers += killed
        if code != -signal.SIGKILL:
            break
        done += 1
    wrong = [] if code == 0 else [f"a process ended with {code}"]
    _, answer, _ = _forked(lambda: judge(scene), None)
    wrong += answer.get("wrong", ["it could not be judged"])
    if decoys is not None:
        _, answer, _ = _forked(lambda: _trampled(scene, decoys), None)
        wrong += answer.get("wrong", ["what is foreign could not be looked at"])
    return Case(seed, done, tuple(wrong), time.monotonic() - begun, keepers)


def _planted(scene: Scene) -> dict[str, Any] | None:
    if not scene.ground.decoys:
        return None
    from tests.chaos.containers import plant

    code, about, _ = _forked(lambda: plant(scene.root, RUNS), None)
    if code != 0:
        raise AssertionError("what is foreign could not be planted")
    return about


def _trampled(scene: Scene, decoys: dict[str, Any]) -> Coroutine[Any, Any, dict[str, Any]]:
    from tests.chaos.containers import trampled

    return trampled(scene.root, decoys)


@contextmanager
def _collecting(work: Callable[[], Coroutine[Any, Any, Any]], *, wanted: bool) -> Iterator[None]:
    """Another process beside the block, which is killed at the block's end, wherever it is by then.

    Raises:
        AssertionError: It had ended before, which it does only when something went wrong.
    """
    if not wanted:
        yield
        return
    pid = os.fork()
    if pid == 0:
        _child(work, os.open(os.devnull, os.O_WRONLY))
    try:
        yield
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            raise AssertionError(f"the collector ended with {os.waitstatus_to_exitcode(status)}")
    finally:
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _forked(
    work: Callable[[], Coroutine[Any, Any, Any]], moment: float | None, *, keeper: tuple[Path, float] | None = None
) -> tuple[int, dict[str, Any], int]:
    """Runs `work` in a child; kills it after `moment` seconds, and the keeper of a state folder so long after it is seen.

    Returns:
        Its exit code (negative: the signal), its answer, and how many keepers were killed.
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        _child(work, writing)
    os.close(writing)
    watched = os.pidfd_open(pid)
    over, killed = time.monotonic() + (PATIENCE_SECONDS if moment is None else moment), 0
    try:
        if keeper is not None and _keeper_seen(keeper[0], watched, over) and not _ends(watched, min(over, time.monotonic() + keeper[1])):
            killed = _kill_keeper(keeper[0])
        ended = _ends(watched, over)
        if not ended:
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        if not ended and moment is None:
            return 1, {"wrong": [f"a process did not end within {PATIENCE_SECONDS:g} s"]}, killed
        with os.fdopen(reading) as stream:
            text = stream.read() if ended else ""
        return os.waitstatus_to_exitcode(status), json.loads(text or "{}"), killed
    finally:
        os.close(watched)


def _ends(watched: int, until: float) -> bool:
    """Whether a process ends before a moment of the monotonic clock."""
    return bool(select.select([watched], [], [], max(0.0, until - time.monotonic()))[0])


def _keeper_seen(state_root: Path, watched: int, until: float) -> bool:
    """Whether there is a keeper before a process ends, and before a moment."""
    while recorded_owner(state_root) is None:
        if _ends(watched, min(until, time.monotonic() + LOOK_SECONDS)) or time.monotonic() >= until:
            return False
    return True


def _kill_keeper(state_root: Path) -> int:
    """Kills the keeper of an installation, if there is one. Returns how many were."""
    owner = recorded_owner(state_root)
    if owner is None:
        return 0
    try:
        os.kill(owner.pid, signal.SIGKILL)
    except ProcessLookupError:
        return 0
    return 1


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
