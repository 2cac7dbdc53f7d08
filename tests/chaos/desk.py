"""`python -m tests.chaos.desk`: kill -9 in every step of the bundle `desk`, of the command, of the gateway and of the keeper.

Every kill is followed by a resume where the run did not get over it by itself. In the end there are the scores of a run that nobody
disturbed, and nothing is left. One run takes one kill in each of its steps, so that three runs do it all; whatever a kill missed, because
its step was over too soon, is tried again in a further run. `--seed S` replays the choices.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import secrets
import select
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from importlib.resources import files
from itertools import count
from pathlib import Path

import psutil

from agent_env.containers import Engine, EngineEndpoint, objects
from agent_env.containers.spec import HOME, ROLE
from agent_env.errors import NotFoundError
from agent_env.keeper.client import recorded_owner
from agent_env.stores.installation import home_of
from tests.acceptance.conftest import clean_up
from tests.acceptance.containers import in_engine
from tests.cli.conftest import AGENT_ENV
from tests.container_engine import engine_endpoint
from tests.environment_steps.conftest import LONGEST, User

STEPS = [step["id"] for step in json.loads(Path(str(files("agent_env_bundles"))).joinpath("desk/tasks/monday.json").read_text())]
VICTIMS = ("command", "gateway", "keeper")
UNDISTURBED = {"done": 1.0, "again": 1.0, "fresh": 1.0, "total": 1.0}
INFRASTRUCTURE = {"transport_lost", "sandbox_unavailable", "place_lost", "transfer", "deadline", "infrastructure"}
"""As what a run may end that lost its gateway or keeper: never as the task's own doing."""
WINDOWS: Mapping[str, float] = {"desk": 6.0, "work": 0.5, "done": 1.0, "again": 0.6, "fresh": 0.6}
"""Seconds within which a step is struck after it began; about as long as it takes when nobody disturbs it."""
WINDOW = 0.1
LOOK_SECONDS = 0.002
"""Between two looks into the journal."""
ASK_SECONDS = 0.05
"""Between two questions to the engine, which has something else to do while there is no gateway yet."""
IDLE = 3
"""Resumes in a row that end without success although nobody was killed: more would not help."""
RUNS = 6
"""In which kills are tried again that missed their step."""

Aim = tuple[str, str]
"""A step and a victim."""


@dataclass(frozen=True, slots=True)
class Strike:
    """One kill."""

    step: str
    victim: str
    after_seconds: float
    what: str
    """Which process it was."""
    met: bool
    """It fell into the step."""

    def __str__(self) -> str:
        missed = "" if self.met else " (missed: the step was over)"
        return f"{self.step:9} {self.what}, {self.after_seconds:.3f} s after it began{missed}"


@dataclass
class Chain:
    """One run of the bundle with its kills."""

    seed: str
    strikes: list[Strike] = field(default_factory=list)
    resumes: int = 0
    wrong: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def met(self) -> set[Aim]:
        return {(strike.step, strike.victim) for strike in self.strikes if strike.met}


class Scene:
    """A user at the desk, and whoever kills.

    Args:
        user: Has a home, in which nothing else runs.
        engine: Where the gateways are.
    """

    def __init__(self, user: User, engine: EngineEndpoint) -> None:
        self.user = user
        self._engine = engine
        self._home = home_of(user.state)
        self._seen: list[int] = []
        self._asked_again = 0.0

    # what goes on

    def running(self) -> str | None:
        """The step that the newest run is in."""
        with suppress(sqlite3.Error), closing(sqlite3.connect(f"file:{self.user.state / 'agent-env.db'}?mode=ro", uri=True)) as journal:
            found = journal.execute(
                "SELECT step_id FROM attempts WHERE ended IS NULL AND superseded = 0 AND run_id = "
                "(SELECT run_id FROM runs ORDER BY created_at DESC LIMIT 1) ORDER BY started_at DESC LIMIT 1"
            ).fetchone()
            return str(found[0]) if found else None
        return None

    def start(self, *argv: str) -> subprocess.Popen[bytes]:
        command = [str(AGENT_ENV), *argv]
        return subprocess.Popen(
            command, cwd=self.user.cwd, env=self.user.environ(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self._said()
        )

    def _said(self) -> int:
        return os.open(self.user.cwd / "said.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    # victims

    def gateway(self) -> list[int]:
        """Its processes, outermost first; asked for anew once one of them is gone, so that a step of milliseconds can be met."""
        if not self._seen or not all(map(psutil.pid_exists, self._seen)):
            self._seen = []
            if (now := time.monotonic()) >= self._asked_again:
                self._asked_again, self._seen = now + ASK_SECONDS, asyncio.run(self._look())
        return self._seen

    async def _look(self) -> list[int]:
        async with Engine(self._engine) as engine:
            for each in await objects.containers(engine, {HOME: self._home, ROLE: "gateway"}):
                with suppress(NotFoundError):  # removed meanwhile, because its deployment failed or its run is over
                    state = (await objects.inspect(engine, each.id)).get("State") or {}
                    if state.get("Running"):
                        return tree(int(state["Pid"]))
        return []

    def keeper(self) -> list[int]:
        owner = recorded_owner(self.user.state)
        return [owner.pid] if owner is not None else []


def tree(pid: int) -> list[int]:
    """A process and the first child of each, down to the last."""
    found: list[int] = []
    with suppress(psutil.Error):
        process: psutil.Process | None = psutil.Process(pid) if pid else None
        while process is not None:
            found.append(process.pid)
            process = next(iter(process.children()), None)
    return found


def killed(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
        return True
    return False


class Killing:
    """One run that takes the kills it is given.

    Args:
        scene: The user.
        aims: Step → victim.
        seed: Of the moments, and of the gateway's processes.
        tries: How often an aim was missed: the window gets narrower each time.
    """

    def __init__(self, scene: Scene, aims: Mapping[str, str], seed: str, tries: Mapping[Aim, int]) -> None:
        self._scene = scene
        self._aims = dict(aims)
        self._chance = random.Random(seed)
        self._tries = tries
        self.chain = Chain(seed)

    def run(self) -> Chain:
        """Runs it to its end."""
        began, scene, chain = time.monotonic(), self._scene, self.chain
        process, run_id = scene.start("run", "desk"), None
        idle = 0
        while True:
            struck = len(chain.strikes)
            code = self._until_ended(process)
            run_id = run_id or self._newest()
            idle = 0 if len(chain.strikes) > struck else idle + 1
            if run_id is None or code == 0 or idle >= IDLE:
                break
            if code != -signal.SIGKILL:
                self._look_at_failure(run_id)
            chain.resumes += 1
            process = scene.start("resume", run_id)
        self._judge(run_id, code)
        chain.seconds = time.monotonic() - began
        return chain

    def _newest(self) -> str | None:
        """Of a command that was killed before there was a run, nothing is to be taken up again."""
        runs = self._scene.user.runs()
        return str(runs[0]["run_id"]) if runs else None

    def _until_ended(self, process: subprocess.Popen[bytes]) -> int:
        """Kills what is to be killed in the steps that this process goes through. Returns how the process ended."""
        until = time.monotonic() + LONGEST
        while process.poll() is None:
            assert time.monotonic() < until, "it does not end"
            step = self._scene.running()
            if step in self._aims and self._strike(process, step, self._aims[step]):
                del self._aims[step]
            elif step is not None and step not in self._aims and "gateway" in self._aims.values():
                self._scene.gateway()
            wait(LOOK_SECONDS)
        return int(process.wait())

    def _strike(self, process: subprocess.Popen[bytes], step: str, victim: str) -> bool:
        """Whether there was somebody to kill."""
        window = WINDOWS.get(step, WINDOW) / 2 ** self._tries.get((step, victim), 0)
        after = self._chance.uniform(0, window)
        targets = self._targets(process, victim)
        if not targets:  # not there yet, or not any more: looked for again as long as the step goes on
            return False
        what, pid = targets[self._chance.randrange(len(targets))]
        wait(after)
        before = self._scene.running()
        if not killed(pid):
            return False
        if victim == "command":
            process.wait()
            before = self._scene.running()  # what it left half-done
        self.chain.strikes.append(Strike(step, victim, after, what, before == step))
        return True

    def _targets(self, process: subprocess.Popen[bytes], victim: str) -> list[tuple[str, int]]:
        match victim:
            case "command":
                return [("the command", process.pid)]
            case "keeper":
                return [("the keeper", pid) for pid in self._scene.keeper()]
        names = ("the gateway's container", "the gateway's supervisor", "the gateway's server")
        return list(zip(names, self._scene.gateway(), strict=False))

    def _look_at_failure(self, run_id: str) -> None:
        shown = self._scene.user.show(run_id)
        if shown["kind"] not in INFRASTRUCTURE:
            self.chain.wrong.append(f"after {self.chain.strikes[-1:]} it ended as {shown['kind']}: {shown['error']}")
        lowered = {name: score for name, score in (shown["scores"] or {}).items() if score != UNDISTURBED[name]}
        if lowered:
            self.chain.wrong.append(f"after {self.chain.strikes[-1:]} it was scored {lowered}")

    def _judge(self, run_id: str | None, code: int) -> None:
        chain, user = self.chain, self._scene.user
        if run_id is None:
            chain.wrong.append("there is no run")
            return
        shown = user.show(run_id)
        if (code, shown["status"], shown["scores"]) != (0, "completed", UNDISTURBED):
            chain.wrong.append(f"exit code {code}, {shown['status']}, {shown['scores']}: {shown['error']}")
        collected = user("gc", "--kept")
        left, engine = user.left(), in_engine(self._scene._engine, user)
        if (collected.code, left, engine) != (0, {}, []):
            chain.wrong.append(f"left: {left} {engine}\n{collected.all}")


def wait(seconds: float) -> None:
    select.select([], [], [], seconds)


def chains(scene: Scene, seed: str, aims: set[Aim]) -> Iterator[Chain]:
    """Runs until every aim was met, `RUNS` at most: a step of less than a millisecond is over before anybody sees it."""
    tries: dict[Aim, int] = {}
    for number in count():
        if not aims or number >= RUNS:
            return
        turn = {step: victim for place, step in enumerate(STEPS) if (victim := _whose(step, number + place, aims)) is not None}
        chain = Killing(scene, turn, f"{seed}-{number}", tries).run()
        aims -= chain.met
        for aim in turn.items():
            tries[aim] = tries.get(aim, 0) + 1
        yield chain


def _whose(step: str, turn: int, aims: set[Aim]) -> str | None:
    wanted = [victim for victim in VICTIMS if (step, victim) in aims]
    return VICTIMS[turn % 3] if VICTIMS[turn % 3] in wanted else wanted[turn % len(wanted)] if wanted else None


@contextmanager
def a_user() -> Iterator[User]:
    """A user with an empty home, whose leftovers go with it."""
    with tempfile.TemporaryDirectory(prefix="agentenv-chaos-") as folder:
        Path(folder).chmod(0o755)
        user = User(Path(folder) / "one")
        try:
            yield user
        finally:
            clean_up(user)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.desk", description=__doc__)
    parser.add_argument("--victims", nargs="+", choices=VICTIMS, default=VICTIMS)
    parser.add_argument("--steps", nargs="+", choices=STEPS, default=STEPS)
    parser.add_argument("--seed", default=None, help="replay these choices")
    given = parser.parse_args()
    seed = given.seed or secrets.token_hex(4)
    aims = {(step, victim) for step in given.steps for victim in given.victims}
    met: dict[Aim, str] = {}
    failed, total = 0, len(aims)
    with a_user() as user:
        for chain in chains(Scene(user, engine_endpoint()), seed, aims):
            print(f"seed {chain.seed}: {len(chain.strikes)} kills, {chain.resumes} resumes, {chain.seconds:.1f} s", flush=True)
            for strike in chain.strikes:
                print(f"  {strike}", flush=True)
                met |= {(strike.step, strike.victim): strike.what} if strike.met else {}
            if chain.wrong:
                failed += 1
                print("  WRONG " + "\n  ".join(chain.wrong), flush=True)
                print(f"  {(user.cwd / 'said.txt').read_text()[-4000:]}")
            (user.cwd / "said.txt").unlink(missing_ok=True)
    missed = ", ".join(f"{victim} in {step}" for step, victim in sorted(aims)) or "none"
    print(f"{len(met)} of {total} kills met their step (missed: {missed}), {failed} runs went wrong")
    print(f"replay: python -m tests.chaos.desk --seed {seed}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
