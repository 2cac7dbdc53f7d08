"""Processes of their own for the tests: `python -m tests.stores.actors ROLE ARGUMENT…`. Each says what it did on standard output."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

from agent_env.errors import RunOwnedError
from agent_env.stores import Database, Documents, Journal, NewRun, Objects


def say(*words: object) -> None:
    print(*words, flush=True)


def count(url: str, id: str, times: str) -> None:
    """Stores so many versions of one document."""
    with Database.open(url) as db:
        documents = Documents(db)
        for number in range(int(times)):
            say(documents.put("tasks", id, "task", {"n": number, "padding": "x" * 2000}).version)


def commit_for_ever(url: str, run_id: str) -> None:
    """Commits attempts until it is killed, and says each once it is durable."""

    async def work() -> None:
        with Database.open(url) as db:
            journal = Journal(db)
            lease = await journal.claim(run_id)
            for number in range(1, 1_000_000):
                attempt = await journal.start_attempt(lease, "step", number=number)
                journal.event(lease, "step_done", "step", {"n": number})
                await journal.finish_attempt(lease, attempt, state="succeeded", updates=[["set", ["n"], "y" * (number % 5000)]])
                say(attempt)

    asyncio.run(work())


def claim(url: str, run_id: str) -> None:
    """Waits for a line, claims a run at that moment, says how that went and stays until it is told to go."""

    async def work() -> None:
        with Database.open(url) as db:
            journal = Journal(db)
            say("ready")
            sys.stdin.readline()
            try:
                lease = await journal.claim(run_id)
                say("won", lease.epoch)
            except RunOwnedError as error:
                say("lost", error.message)
            sys.stdin.readline()

    asyncio.run(work())


def own(url: str, run_id: str) -> None:
    """Creates and owns a run, then waits for a signal."""

    async def work() -> None:
        with Database.open(url) as db:
            journal = Journal(db)
            await journal.create_run(NewRun(run_id, f"{run_id}-i", "task"))
            await journal.claim(run_id)
            say("owned")
            signal.pause()

    asyncio.run(work())


def put_objects(root: str, text: str) -> None:
    """Stores objects until it is killed."""
    objects = Objects(Path(root))
    for number in range(1_000_000):
        say(objects.put(f"{text}{number}".encode() * 20_000).sha256)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
