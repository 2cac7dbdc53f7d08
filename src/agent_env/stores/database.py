"""The run database: many readers, and one writer thread whose commits serve everybody who waits.

It knows transactions, not tables. Code that writes is a function of a `Connection`; it may be run again when the transaction as a
whole had to be given up, so it has no effect but on the database.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self, TypeVar

from agent_env.clock import Clock, SystemClock
from agent_env.defaults import DEFAULT_LIMITS, Limits
from agent_env.errors import ConfigError, StorageError
from agent_env.stores.connection import AbortedError, AwayError, Backend, Connection, Session
from agent_env.stores.writer import Job, Outage, Writer

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")


class Database:
    """One run database, SQLite or PostgreSQL.

    Threads: every method may be called from any thread. Processes: any number may open the same database.
    """

    def __init__(self, backend: Backend, limits: Limits, clock: Clock, url: str) -> None:
        self._backend = backend
        self.url = url
        """What it was opened by; it may hold a password. For another process of this installation."""
        self.limits = limits
        self.clock = clock
        self._readers: list[Session] = []
        self._lock = threading.Lock()
        self._writer: Writer | None = None
        self._outage = Outage(limits, clock)
        self._closed = False

    @classmethod
    def open(cls, url: str, *, limits: Limits = DEFAULT_LIMITS, clock: Clock | None = None) -> Self:
        """Opens a database, creating or migrating it first when that is due.

        Args:
            url: `sqlite:///PATH`, with `?synchronous=full` for safety against power loss, or `postgresql://…`.
            limits: `database_busy_seconds`, `database_away_seconds`, `group_commit_seconds`, `connect_seconds`, `inline_result_bytes`,
                `document_bytes` count here.
            clock: Time, for records that people read.

        Raises:
            ConfigError: The URL is of no known kind.
            StorageError: The database can't be reached or used.
        """
        scheme = url.partition(":")[0].partition("+")[0]
        backend: Backend
        if scheme == "sqlite":
            from agent_env.stores.sqlite import SqliteBackend

            backend = SqliteBackend(url, limits)
        elif scheme in {"postgresql", "postgres"}:
            from agent_env.stores.postgres import PostgresBackend

            backend = PostgresBackend(url, limits)
        else:
            raise ConfigError(f"{scheme!r} is no kind of run database", hint="sqlite:///PATH or postgresql://USER@HOST/NAME")
        backend.prepare()
        return cls(backend, limits, clock or SystemClock(), url)

    @property
    def name(self) -> str:
        """How messages call it: a path, or a URL without its password."""
        return self._backend.name

    def keeps_what_was_written(self) -> bool:
        """Whether the database's name still leads to what was written through this; a file can be removed or replaced meanwhile."""
        return self._backend.keeps_what_was_written()

    def read(self, fn: Callable[[Connection], T]) -> T:
        """Runs `fn` on one consistent snapshot, in the calling thread. A server that was there is waited for if it is away."""
        cut = False
        while True:
            try:
                result = self._read_once(fn)
            except AwayError:
                if not self._outage.borne():
                    raise
                cut = False
            except AbortedError:  # a connection that waited for use was cut meanwhile (a restart): all such are
                if cut:
                    raise
                cut = True
                self._forget_readers()
            else:
                self._outage.is_over()
                return result

    def write(self, fn: Callable[[Connection], T]) -> T:
        """Runs `fn` in a transaction of its own on the writer thread and returns once it is durable.

        A server that was there is waited for if it is away, and `fn` is run again only if it is certain that its changes don't stand.
        """
        done = threading.Event()
        job = Job(fn, done.set)
        self._submit(job)
        done.wait()
        return job.outcome()

    async def awrite(self, fn: Callable[[Connection], T]) -> T:
        """Like `write`, without blocking the event loop. Writes that wait at the same time share one commit.

        What was handed over is carried out even when the caller is cancelled meanwhile.
        """
        import asyncio

        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()

        def settle() -> None:
            if not done.done():
                done.set_result(None)

        job = Job(fn, settle, loop)
        self._submit(job)
        await done
        return job.outcome()

    def submit(self, fn: Callable[[Connection], Any]) -> None:
        """Hands a write over without waiting for it. Its failure is only seen by whoever looks for what it wrote."""
        self._submit(Job(fn, _nobody))

    def close(self) -> None:
        """Commits what was handed over, then gives every connection up. Closing twice is harmless."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            readers, self._readers = self._readers, []
            writer, self._writer = self._writer, None
        if writer is not None:
            writer.stop()
        for session in readers:
            session.close()
        self._backend.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read_once(self, fn: Callable[[Connection], T]) -> T:
        session = self._reader()
        usable = False
        try:
            session.begin(write=False)
            result = fn(session)
            session.commit()
            usable = True
        finally:
            with self._lock:
                usable = usable and not self._closed
                if usable:
                    self._readers.append(session)
            if not usable:
                session.close()
        return result

    def _forget_readers(self) -> None:
        with self._lock:
            readers, self._readers = self._readers, []
        for session in readers:
            session.close()

    def _reader(self) -> Session:
        with self._lock:
            if self._closed:
                raise StorageError(f"the run database {self.name} is closed", concerns=self.name)
            if self._readers:
                return self._readers.pop()
        return self._backend.connect(write=False)

    def _submit(self, job: Job[Any]) -> None:
        with self._lock:
            if self._closed:
                raise StorageError(f"the run database {self.name} is closed", concerns=self.name)
            if self._writer is None:
                self._writer = Writer(self._backend, self.limits, self.clock, self._outage)
            writer = self._writer
            writer.submit(job)


def _nobody() -> None:
    """Nobody waits."""
