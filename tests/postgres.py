"""A real PostgreSQL for the tests: one server a session, shared by xdist's workers, gone at the end; one database a worker."""

from __future__ import annotations

import fcntl
import os
import pwd
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import psycopg

SUPERUSER = "agentenv"
SERVER_USER = "postgres"
PREFIX = "agentenv-pg-"
OWNER = "session"
QUICK = "-c fsync=off -c full_page_writes=off -c max_connections=200 -c shared_buffers=16MB -c listen_addresses="


@pytest.fixture(scope="session")
def postgres_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of the server's socket. The first worker that asks starts the server, the last one that ends stops it."""
    binaries = server_binaries()
    if binaries is None:
        pytest.skip("agentenv-capability-missing: postgresql")
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    state = shared / "postgres"
    with locked(state):
        users, folder = read_state(state)
        if users == 0:
            folder = start_server(binaries)
        write_state(state, users + 1, folder)
    try:
        yield folder
    finally:
        with locked(state):
            users, folder = read_state(state)
            write_state(state, users - 1, folder)
            if users == 1:
                stop_server(binaries, folder)


@pytest.fixture(scope="session")
def postgres_database(postgres_server: Path) -> str:
    """The name of this worker's own database: one is made, and removed, in ten times the time in which it is emptied."""
    name = f"t_{secrets.token_hex(6)}"
    with admin(postgres_server, "postgres") as server:
        server.execute(f"CREATE DATABASE {name} TEMPLATE template0")
    return name


@pytest.fixture
def postgres_url(postgres_server: Path, postgres_database: str) -> Iterator[str]:
    """The URL of an empty database that nobody else uses meanwhile."""
    yield f"postgresql://{SUPERUSER}@/{postgres_database}?host={postgres_server}"
    with admin(postgres_server, postgres_database) as server:
        others = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        server.execute(f"SELECT pg_terminate_backend(pid, 10000) {others}")
        schemas = server.execute(r"SELECT quote_ident(nspname) FROM pg_namespace WHERE nspname !~ '^(pg_|information_schema$)'").fetchall()
        for (schema,) in schemas:
            server.execute(f"DROP SCHEMA {schema} CASCADE")
        server.execute("CREATE SCHEMA public")


def admin(folder: Path, database: str) -> psycopg.Connection[tuple[str]]:
    import psycopg

    return psycopg.connect(host=str(folder), user=SUPERUSER, dbname=database, autocommit=True)


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty run database; a test that asks for it runs against each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'state' / 'runs.db'}"
    return str(request.getfixturevalue("postgres_url"))


def server_binaries() -> Path | None:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[4]))
    if found:
        return found[-1].parent
    on_path = shutil.which("initdb")
    return Path(on_path).resolve().parent if on_path else None


def start_server(binaries: Path) -> Path:
    sweep(binaries)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir="/tmp"))
    folder.chmod(0o755)
    (folder / OWNER).write_text(str(os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()))
    if os.getuid() == 0:  # the server refuses to run as root
        account = pwd.getpwnam(SERVER_USER)
        os.chown(folder, account.pw_uid, account.pw_gid)
    data = folder / "data"
    run(folder, [binaries / "initdb", "-D", data, "-U", SUPERUSER, "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync"])
    run(folder, [binaries / "pg_ctl", "-D", data, "-l", folder / "log", "-w", "-o", f"-k {folder} {QUICK}", "start"])
    return folder


def sweep(binaries: Path) -> None:
    """Stops servers of sessions that were killed."""
    for owner in Path("/tmp").glob(f"{PREFIX}*/{OWNER}"):
        if owner.stat().st_uid == os.getuid() and is_gone(int(owner.read_text() or os.getpid())):
            stop_server(binaries, owner.parent)


def is_gone(process: int) -> bool:
    """Asked of the kernel, not of `/proc`: a test that plays a Mac has none, and must not take everybody for dead."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def stop_server(binaries: Path, folder: Path) -> None:
    if (folder / "data" / "postmaster.pid").exists():
        run(folder, [binaries / "pg_ctl", "-D", folder / "data", "-m", "immediate", "-w", "stop"])
    shutil.rmtree(folder)


def run(folder: Path, argv: list[str | Path]) -> None:
    user = SERVER_USER if os.getuid() == 0 else None
    done = subprocess.run(
        argv,
        cwd=folder,
        user=user,
        group=user,
        extra_groups=[] if user else None,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,  # a pipe would be inherited by the server and never end
        stderr=subprocess.DEVNULL,
        timeout=60,
        check=False,
    )
    if done.returncode:
        log = folder / "log"
        raise RuntimeError(f"{argv} exited with {done.returncode}\n{log.read_text() if log.exists() else ''}")


@contextmanager
def locked(state: Path) -> Iterator[None]:
    with state.with_name("postgres.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def read_state(state: Path) -> tuple[int, Path]:
    if not state.exists():
        return 0, Path()
    users, folder = state.read_text().split("\n")
    return int(users), Path(folder)


def write_state(state: Path, users: int, folder: Path) -> None:
    state.write_text(f"{users}\n{folder}")
