"""A PostgreSQL server that goes away for a moment, seen through a relay that cuts, refuses and loses answers when it is told to."""

from __future__ import annotations

import asyncio
import select
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from agent_env.defaults import DEFAULT_LIMITS
from agent_env.errors import StorageError
from agent_env.stores import Connection, Database
from tests.stores.test_database import names, setting

SOCKET = ".s.PGSQL.5432"
FOREVER = 1 << 30


class Relay:
    """Stands in for a server's socket."""

    def __init__(self, folder: Path, server: Path) -> None:
        self.refusals = 0
        """How many of the next connections are closed at once, and with the first of them all that are open."""
        self.refused = 0
        self.at_commit = ""
        """What becomes of the next commit, once: `lost` on its way, or `unanswered`."""
        self._server = str(server / SOCKET)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / SOCKET))
        self._listener.listen()
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def go(self, refusals: int) -> None:
        """The server goes away: every connection breaks, and so many that are tried are refused."""
        self.refusals = refusals
        self.cut()

    def cut(self) -> None:
        for each in self._open:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if self.refused < self.refusals:
                    self.refused += 1
                    client.close()
                else:
                    threading.Thread(target=self._carry, args=(client,), daemon=True).start()

    def _carry(self, client: socket.socket) -> None:
        with client, socket.socket(socket.AF_UNIX) as server, suppress(OSError):
            server.connect(self._server)
            self._open += [client, server]
            while True:
                ready, _, _ = select.select([client, server], [], [])
                for each in ready:
                    data = each.recv(1 << 16)
                    if not data:
                        return
                    what, self.at_commit = (self.at_commit, "") if each is client and b"COMMIT\0" in data else ("", self.at_commit)
                    if what == "lost":
                        return
                    (server if each is client else client).sendall(data)
                    if what == "unanswered":
                        server.recv(1 << 16)
                        return


@pytest.fixture
def relay(postgres_url: str, postgres_server: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Relay, str]]:
    folder = tmp_path_factory.mktemp("r")
    standing = Relay(folder, postgres_server)
    try:
        yield standing, postgres_url.replace(f"host={postgres_server}", f"host={folder}")
    finally:
        standing.close()


def counting(runs: list[int]):
    def write(tx: Connection) -> None:
        runs.append(len(runs))
        setting(f"run {len(runs)}")(tx)

    return write


def test_a_server_that_comes_back_is_waited_for_by_writers_and_readers(relay: tuple[Relay, str]) -> None:
    standing, url = relay
    with Database.open(url) as db:
        db.write(setting("before"))
        names(db)
        standing.go(3)
        db.write(setting("written"))
        assert standing.refused == 3
        standing.go(6)
        assert names(db) == {"before", "written"}
        assert standing.refused == 6
        standing.cut()
        db.write(setting("cut"))
        assert names(db) == {"before", "written", "cut"}


def test_a_commit_that_did_not_arrive_is_made_again_and_one_without_an_answer_is_not(relay: tuple[Relay, str]) -> None:
    standing, url = relay
    with Database.open(url) as db:
        runs: list[int] = []
        standing.at_commit = "lost"
        db.write(counting(runs))
        assert (len(runs), names(db)) == (2, {"run 2"})
        standing.at_commit = "unanswered"
        db.write(counting(runs))
        assert (len(runs), names(db)) == (3, {"run 2", "run 3"})


def test_writes_that_share_a_commit_without_an_answer_are_each_done_once(relay: tuple[Relay, str]) -> None:
    standing, url = relay

    async def together(db: Database, what: str) -> None:
        await asyncio.gather(*(db.awrite(setting(f"{what} {number}")) for number in range(10)))

    with Database.open(url) as db:
        db.write(setting("before"))
        for what in ("lost", "unanswered"):
            standing.at_commit = what
            asyncio.run(together(db, what))
            assert standing.at_commit == ""
        assert names(db) == {"before", *(f"{what} {number}" for what in ("lost", "unanswered") for number in range(10))}


def test_a_server_that_stays_away_is_given_up_by_all_at_the_same_time(relay: tuple[Relay, str]) -> None:
    standing, url = relay
    limits = replace(DEFAULT_LIMITS, database_away_seconds=0.3)
    with Database.open(url, limits=limits) as db:
        db.write(setting("before"))
        standing.go(FOREVER)
        for again in range(2):
            before = standing.refused
            for ask in (lambda: db.write(setting("x")), lambda: names(db)):
                with pytest.raises(StorageError, match="is the server up"):
                    ask()
            assert again == 0 or standing.refused - before <= 3  # nobody waits any more
        standing.go(standing.refused)
        db.write(setting("after"))
        assert names(db) == {"before", "after"}


def test_a_server_that_is_not_there_at_first_is_not_waited_for(relay: tuple[Relay, str]) -> None:
    standing, url = relay
    standing.go(FOREVER)
    with pytest.raises(StorageError, match="is the server up"):
        Database.open(url)
    assert standing.refused == 1
