"""What a command works with: the configuration, the stores, the engine. Opened when asked for, closed when the command ends."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from agent_env.cli import ALLOCATIONS_WHILE_STARTING
from agent_env.cli.boundary import InterruptionError
from agent_env.cli.interruptions import SIGNALS
from agent_env.cli.output import note
from agent_env.cli.state import state_of
from agent_env.diagnostics import Diagnostics
from agent_env.errors import UserError

if TYPE_CHECKING:
    from agent_env.artifacts import Artifacts
    from agent_env.config import Config
    from agent_env.engine import Engine
    from agent_env.engine.options import Stores
    from agent_env.errors import NotFoundError, Problem
    from agent_env.places import Place
    from agent_env.stores import RunRow, StoredRun
    from agent_env.stores.opening import Memory

T = TypeVar("T")
ALLOCATIONS_BETWEEN_COLLECTIONS = 50_000
"""While a command works."""


def configuration() -> Config:
    """The configuration that holds in the working directory.

    Raises:
        UserError: Everything wrong with it. Its `readable` is the configuration without that, to look for problems of other things.
    """
    from agent_env.cli.unread import refuse_misspelt
    from agent_env.config import load_config

    found, unsound = Diagnostics(), set[str]()
    config = found.of(lambda: load_config(Path.cwd(), os.environ))
    if config is None:
        found.tell()
    assert config is not None
    unread: Sequence[Problem] = ()
    try:
        unread = refuse_misspelt(config)
    except UserError as error:
        found.refuse(error)
        unsound.add("sandbox")
    context = click.get_current_context(silent=True)
    warned = state_of(context).warned if context is not None else set[str]()
    for said in map(str, (*config.warnings, *unread, *config.notes)):
        if said not in warned:
            warned.add(said)
            note(f"warning: {said}")
    if config.given("task_steps.impls"):
        from agent_env.steps.registry import configure

        try:
            configure(config.get("task_steps.impls"))
        except UserError as error:
            found.refuse(error)
            unsound.add("task_steps")
    if found:
        found.tell(readable=replace(config, unsound=config.unsound | unsound))
    return config


def asked_configuration(found: Diagnostics) -> Config:
    """The configuration for a command that looks for everything wrong with what it was given; see `Config.unsound`.

    Args:
        found: Takes what is wrong with the configuration.

    Raises:
        UserError: Nothing can be made of it.
    """
    from agent_env.config import NOWHERE

    config = found.of(configuration)
    if config is None:
        found.tell()
    assert config is not None
    if config.state_root == NOWHERE:
        config = _with_empty_stores(config)
        if config is None:
            found.tell()
        assert config is not None
    if "task_steps" in config.unsound:
        from agent_env.steps.registry import configure_unknown

        configure_unknown()
    return config


def _with_empty_stores(config: Config) -> Config | None:
    """The same with stores that are empty and gone when the command ends; None where there is no place for them either."""
    from tempfile import TemporaryDirectory

    from agent_env.config.loading import DATABASE_FILE

    try:
        made = TemporaryDirectory(prefix="agent-env-")
    except FileNotFoundError:
        return None
    folder = Path(click.get_current_context().with_resource(made))
    return replace(config, state_root=folder, database_url=f"sqlite:///{folder / DATABASE_FILE}")


@contextmanager
def opened_stores(config: Config | None = None) -> Iterator[Memory]:
    """The stores of this installation, without the engine: looking back must be quick."""
    from agent_env.stores.opening import open_memory

    with open_memory(config or configuration()) as memory:
        yield memory


def artifacts_of(memory: Memory) -> Artifacts:
    """The artifacts in these stores."""
    from agent_env.artifacts import Artifacts

    return Artifacts(memory.documents, memory.objects)


def stores_of(memory: Memory, config: Config | None = None) -> Stores:
    """These stores with artifacts over them, as planning wants them.

    Args:
        memory: Opened.
        config: What they were opened by, where something is wrong with it: they may be others than those that are meant.
    """
    from agent_env.engine import Stores

    certain = config is None or config.unsound.isdisjoint(("state", "database"))
    return Stores(memory.db, memory.documents, memory.objects, memory.journal, memory.secrets, artifacts_of(memory), certain)


def find_run(stores: Memory | Stores, prefix: str) -> RunRow:
    """The run of that id, or whose id starts so, also without its `run-`.

    Raises:
        NotFoundError: There is none.
        UsageError: Several start so; the message lists them.
    """
    return stores.journal.find_run(prefix)


def or_run(error: NotFoundError, text: str, stores: Memory | Stores) -> NotFoundError:
    """What is said of a name that nothing has, where the id of a run may stand as well: there, only `run-` makes it one."""
    id, colon, place = text.partition(":")
    with suppress(UserError):
        error.hint = f"of a run, write all of its id: {find_run(stores, id).run_id}{colon}{place}"
    return error


def context_of(stored: StoredRun) -> dict[str, Any]:
    """A run's context as it is recorded, without secrets."""
    from agent_env.documents.context import safe_context
    from agent_env.engine.history import fold_of

    return safe_context(fold_of(stored).context)


@asynccontextmanager
async def opened_place(target: str) -> AsyncIterator[Place]:
    """The place of `RUN` or `RUN:PLACE`, live."""
    async with opened_engine() as engine:
        yield await place_in(engine, target)


async def place_in(engine: Engine, target: str) -> Place:
    """The place of `RUN` or `RUN:PLACE`, of an open engine."""
    run, _, sandbox = target.partition(":")
    return await engine.place_of_run(find_run(engine.stores, run).run_id, sandbox or None)


@asynccontextmanager
async def opened_engine(config: Config | None = None) -> AsyncIterator[Engine]:
    """The engine over this installation's stores."""
    from agent_env.engine.opening import open_engine

    async with open_engine(config or configuration()) as engine:
        context = click.get_current_context(silent=True)
        if context is not None:
            state_of(context).redact.also(engine.redactor.redact)
        yield engine
        database = engine.stores.db
        if not database.keeps_what_was_written():
            note(f"warning: the run database {database.name} was removed or replaced meanwhile, and with it what this command recorded")


def run_async(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Runs `work` to its end on an event loop.

    Each SIGINT or SIGTERM cancels it once: the first lets it clean up, the second stops the clean-up. A signal that this process was
    started to ignore stays ignored.

    Raises:
        InterruptionError: It ended because of a signal.
    """
    import asyncio

    received: list[int] = []
    heard = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]

    async def supervised() -> T:
        task = asyncio.current_task()
        loop = asyncio.get_running_loop()

        def stop(number: int) -> None:
            received.append(number)
            if task is not None:
                task.cancel()

        for number in heard:
            loop.add_signal_handler(number, stop, number)
        if received:
            raise asyncio.CancelledError
        return await work()

    _stay()
    # What comes before the loop can answer is kept for it: an exception in the middle of its making would leave half of it behind.
    before = [(number, signal.signal(number, lambda number, _: received.append(number))) for number in heard]
    try:
        return asyncio.run(supervised())
    except asyncio.CancelledError as error:
        if received:
            raise InterruptionError(received[0]) from error
        raise
    finally:
        for number, handler in before:
            signal.signal(number, handler)


def _stay() -> None:
    """What a command is made of stays until its end: from here on, garbage is searched for among what is made while it works."""
    if gc.get_threshold()[0] == ALLOCATIONS_WHILE_STARTING:  # the process is the command's alone
        gc.freeze()
        gc.set_threshold(ALLOCATIONS_BETWEEN_COLLECTIONS)
