"""`python -m tests.chaos --kills 200`: at least so many kills against SQLite and as many against PostgreSQL, of two runs at once, with a
collector beside most of them. `--places containers`: on containers, with foreign things beside ours, and the keeper killed too.

`--seed S` replays one case.
"""

from __future__ import annotations

import argparse
import secrets
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from _pytest.outcomes import Skipped

from tests.chaos.ground import MACHINES, Ground, containers
from tests.chaos.killing import Case, folder, measured, tried
from tests.chaos.victim import Scene
from tests.postgres import SUPERUSER, server_binaries, start_server, stop_server

Urls = Callable[[Path], str]


@contextmanager
def databases(kind: str) -> Iterator[Urls]:
    """A new, empty database for every case."""
    if kind == "sqlite":
        yield lambda root: f"sqlite:///{root / 'state' / 'runs.db'}"
        return
    binaries = server_binaries()
    if binaries is None:
        raise SystemExit("agentenv-capability-missing: postgresql")
    server = start_server(binaries)

    def made(_: Path) -> str:
        import psycopg

        name = f"chaos_{secrets.token_hex(6)}"
        with psycopg.connect(host=str(server), user=SUPERUSER, dbname="postgres", autocommit=True) as admin:
            admin.execute(f"CREATE DATABASE {name} TEMPLATE template0")
        return f"postgresql://{SUPERUSER}@/{name}?host={server}"

    try:
        yield made
    finally:
        stop_server(binaries, server)


def cases(kind: str, *, kills: int, first_seed: int, single: bool = False, ground: Ground = MACHINES) -> Iterator[Case]:
    """Runs until enough processes were killed, or one case."""
    with ExitStack() as stack:
        urls = stack.enter_context(databases(kind))
        ground.preload(kind)
        undisturbed = []
        for _ in range(2):
            with folder() as warm:
                undisturbed.append(measured(Scene(Path(warm), urls(Path(warm)), ground)))
        whole_seconds = min(undisturbed)
        done, seed = 0, first_seed
        while done < kills:
            with folder() as made:
                root = Path(made)
                case = tried(Scene(root, urls(root), ground), seed=seed, whole_seconds=whole_seconds, kills=1 + seed % 3)
            yield case
            done, seed = done + case.all_kills, seed + 1
            if single:
                return


def grounds(name: str) -> Ground:
    """By its name; containers with what their tasks need present."""
    if name == "machines":
        return MACHINES
    from tests.chaos.containers import image
    from tests.container_engine import engine_endpoint

    image(engine_endpoint())
    return containers()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, help="replay this case alone")
    parser.add_argument("--database", choices=("sqlite", "postgres"), help="one kind only")
    parser.add_argument("--places", choices=("machines", "containers"), default="machines")
    given = parser.parse_args()
    try:
        ground = grounds(given.places)
    except Skipped as missing:
        raise SystemExit(str(missing)) from None
    failed = 0
    for kind in [given.database] if given.database else ["sqlite", "postgres"]:
        first = given.seed if given.seed is not None else secrets.randbelow(1_000_000)
        total = 0
        for case in cases(kind, kills=given.kills, first_seed=first, single=given.seed is not None, ground=ground):
            total += case.all_kills
            state = "ok" if not case.wrong else "WRONG"
            keeper = f" and {case.keeper_kills} of the keeper" if ground.decoys else ""
            print(f"{kind} seed {case.seed}: {case.kills} kills{keeper}, {case.seconds:.2f} s, {state} ({total}/{given.kills})", flush=True)
            if case.wrong:
                failed += 1
                print("  " + "\n  ".join(case.wrong))
                print(f"  replay: python -m tests.chaos --places {ground.name} --database {kind} --seed {case.seed}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
