"""The one thread that writes to a run database: what waits goes into one transaction, and a server that is away is waited for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from agent_env.clock import Clock
from agent_env.defaults import Limits
from agent_env.errors import InternalError, StorageError
from agent_env.stores.connection import AbortedError, AwayError, Backend, Connection, Session

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")
_TRIES = 5
"""How often a write is tried alone after deadlocks or lost connections."""


class Job(Generic[T]):
    """One write that somebody waits for."""

    __slots__ = ("error", "fn", "loop", "result", "settle")

    def __init__(self, fn: Callable[[Connection], T], settle: Callable[[], None], loop: asyncio.AbstractEventLoop | None = None) -> None:
        self.fn = fn
        self.result: T | None = None
        self.error: BaseException | None = None
        self.settle = settle
        """Tells whoever waits; called in the writer thread, or by the event loop that he waits in."""
        self.loop = loop

    def run(self, connection: Connection) -> bool:
        """Runs it and keeps how it ended. Returns whether its changes stand.

        Raises:
            AbortedError: The database gave the whole transaction up with it.
        """
        self.error = None
        try:
            self.result = self.fn(connection)
        except AbortedError:
            raise
        except BaseException as error:  # noqa: BLE001 - it belongs to whoever waits for this write, not to the writer thread
            self.error = error
        return self.error is None

    def outcome(self) -> T:
        """What it returned, or its error."""
        if self.error is not None:
            raise self.error
        return cast("T", self.result)


class Outage:
    """How long a server has been away, for everybody who waits for it: together they wait no longer than one would."""

    def __init__(self, limits: Limits, clock: Clock) -> None:
        self._limits = limits
        self._clock = clock
        self._since: float | None = None
        self._pause = limits.poll_first_seconds

    def borne(self) -> bool:
        """Pauses before another try. False once it has lasted for `database_away_seconds`, until the server was there again."""
        now, since = self._clock.monotonic(), self._since
        if since is None:
            since = self._since = now
            self._pause = self._limits.poll_first_seconds
        left = since + self._limits.database_away_seconds - now
        if left <= 0:
            return False
        threading.Event().wait(min(self._pause, left))
        self._pause = min(2 * self._pause, self._limits.poll_max_seconds)
        return True

    def is_over(self) -> None:
        """The server has answered."""
        self._since = None


class Writer:
    """The one thread that writes.

    A batch is what waits: it is never held open for more to come, and never longer than `group_commit_seconds`. No write has a savepoint:
    when the first one fails, the transaction simply begins again, and when a later one does, which is rare, each is done alone.
    """

    def __init__(self, backend: Backend, limits: Limits, clock: Clock, outage: Outage) -> None:
        self._backend = backend
        self._limits = limits
        self._clock = clock
        self._outage = outage
        self._queue: SimpleQueue[Job[Any] | None] = SimpleQueue()
        self._session: Session | None = None
        self._stopping = False
        self._thread = threading.Thread(target=self._work, name="agent-env-writer", daemon=True)
        self._thread.start()

    def submit(self, job: Job[Any]) -> None:
        """Queues a write."""
        if threading.current_thread() is self._thread:
            raise InternalError("a write waits for another write inside its own transaction")
        self._queue.put(job)

    def stop(self) -> None:
        """Ends the thread once everything queued is done."""
        self._queue.put(None)
        self._thread.join()

    def _work(self) -> None:
        while not self._stopping:
            job = self._queue.get()
            if job is None:
                break
            jobs = [job]
            try:
                self._together(jobs)
            except StorageError as error:
                self._give_up()
                for each in jobs:
                    each.error = error
            _deliver(jobs)
        self._drop()

    def _together(self, jobs: list[Job[Any]]) -> None:
        """Runs the first job and whatever else waits in one transaction; alone, each, if that transaction can't be had."""
        try:
            self._transaction(jobs)
        except _CommitError as error:
            if len(jobs) == 1 and not error.cause.transient:
                raise error.cause from error.cause.__cause__
            self._give_up()
            self._each_alone(jobs)
        except (AbortedError, _SpoiltError):
            self._give_up()
            self._each_alone(jobs)

    def _transaction(self, jobs: list[Job[Any]]) -> None:
        session = self._begin()
        if not jobs[0].run(session):
            session.rollback()
            self._outage.is_over()
            session.begin(write=True)
        ends = self._clock.monotonic() + self._limits.group_commit_seconds
        while (job := self._next(ends)) is not None:
            jobs.append(job)
            if not job.run(session):
                raise _SpoiltError
        try:
            self._commit(session)
        except AbortedError as error:
            raise _CommitError(error) from error

    def _each_alone(self, jobs: list[Job[Any]]) -> None:
        for job in jobs:
            tries = _TRIES
            while tries:
                try:
                    self._alone(job)
                    break
                except AwayError as error:
                    job.error = error
                    if not self._outage.borne():
                        break
                except StorageError as error:
                    job.error = error
                    self._give_up()
                    tries = tries - 1 if isinstance(error, AbortedError) and error.transient else 0

    def _alone(self, job: Job[Any]) -> None:
        session = self._begin()
        if job.run(session):
            self._commit(session)
        else:
            session.rollback()
            self._outage.is_over()

    def _commit(self, session: Session) -> None:
        """Commits. A server may have committed although its answer was lost: then it is asked, and where it did, nothing is run again."""
        mark = session.mark()
        try:
            session.commit()
        except AbortedError as error:
            if self._backend.commit_fails_cleanly:
                raise
            self._drop()
            committed = self._was_committed(mark)
            if committed is False:
                raise
            if committed is None:
                raise StorageError(
                    f"whether a write to {self._backend.name} was committed is not known: {error.message}",
                    concerns=self._backend.name,
                    hint="resume the run: it reads what was stored",
                ) from error
        self._outage.is_over()

    def _was_committed(self, mark: str | None) -> bool | None:
        while True:
            try:
                return self._backend.was_committed(mark)
            except StorageError as error:
                if not (isinstance(error, AbortedError) and error.transient and self._outage.borne()):
                    return None

    def _next(self, ends: float) -> Job[Any] | None:
        if self._stopping or self._clock.monotonic() >= ends:
            return None
        try:
            job = self._queue.get_nowait()
        except Empty:
            return None
        self._stopping = job is None
        return job

    def _begin(self) -> Session:
        if self._session is None:
            self._session = self._backend.connect(write=True)
        self._session.begin(write=True)
        return self._session

    def _give_up(self) -> None:
        """Ends a transaction of unknown state; a connection that can't even roll back is replaced."""
        if self._session is None:
            return
        try:
            self._session.rollback()
        except StorageError:
            self._drop()

    def _drop(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()


def _deliver(jobs: Iterable[Job[Any]]) -> None:
    """Tells whoever waits. An event loop is woken once, however many wait in it: to wake it costs more than a small write."""
    waiting: dict[asyncio.AbstractEventLoop, list[Job[Any]]] = {}
    for job in jobs:
        if job.loop is None:
            job.settle()
        else:
            waiting.setdefault(job.loop, []).append(job)
    for loop, settled in waiting.items():
        if not loop.is_closed():
            loop.call_soon_threadsafe(_settle, settled)


def _settle(jobs: Iterable[Job[Any]]) -> None:
    for job in jobs:
        job.settle()


class _SpoiltError(Exception):
    """A write failed after others of its transaction."""


class _CommitError(Exception):
    """A commit failed and changed nothing; `cause` says how."""

    def __init__(self, cause: AbortedError) -> None:
        super().__init__(str(cause))
        self.cause = cause
