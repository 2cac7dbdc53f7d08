"""What a command works with: the configuration, the stores, the engine. Opened when asked for, closed when the command ends."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from agent_env.cli.boundary import InterruptionError
from agent_env.cli.output import note

if TYPE_CHECKING:
    from agent_env.config import Config
    from agent_env.engine import Engine
    from agent_env.engine.options import Stores
    from agent_env.places import Place
    from agent_env.stores import RunRow, StoredRun

T = TypeVar("T")


def configuration() -> Config:
    """The configuration that holds in the working directory."""
    from agent_env.config import load_config

    config = load_config(Path.cwd(), os.environ)
    for said in (*config.warnings, *config.notes):
        note(f"warning: {said}")
    return config


@contextmanager
def opened_stores(config: Config | None = None) -> Iterator[Stores]:
    """The stores of this installation."""
    from agent_env.engine import open_stores

    with open_stores(config or configuration()) as stores:
        yield stores


def find_run(stores: Stores, prefix: str) -> RunRow:
    """The run of that id, or whose id starts so.

    Raises:
        NotFoundError: There is none.
        UsageError: Several start so; the message lists them.
    """
    return stores.journal.find_run(prefix)


def context_of(stored: StoredRun) -> dict[str, Any]:
    """A run's context as it is recorded, without secrets."""
    from agent_env.documents.context import safe_context
    from agent_env.engine import stored_context

    return safe_context(stored_context(stored))


@asynccontextmanager
async def opened_place(target: str) -> AsyncIterator[Place]:
    """The place of `RUN` or `RUN:SANDBOX`, live."""
    run, _, sandbox = target.partition(":")
    async with opened_engine() as engine:
        yield await engine.place_of_run(find_run(engine.stores, run).run_id, sandbox or None)


@asynccontextmanager
async def opened_engine(config: Config | None = None) -> AsyncIterator[Engine]:
    """The engine over this installation's stores."""
    from agent_env.engine import open_engine

    async with open_engine(config or configuration()) as engine:
        yield engine


def run_async(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Runs `work` to its end on an event loop.

    Each SIGINT or SIGTERM cancels it once: the first lets it clean up, the second stops the clean-up. A signal that this process was
    started to ignore stays ignored.

    Raises:
        InterruptionError: It ended because of a signal.
    """
    import asyncio

    received: list[int] = []

    async def supervised() -> T:
        task = asyncio.current_task()
        loop = asyncio.get_running_loop()

        def stop(number: int) -> None:
            received.append(number)
            if task is not None:
                task.cancel()

        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) is not signal.SIG_IGN:
                loop.add_signal_handler(number, stop, number)
        return await work()

    try:
        return asyncio.run(supervised())
    except asyncio.CancelledError as error:
        if received:
            raise InterruptionError(received[0]) from error
        raise
