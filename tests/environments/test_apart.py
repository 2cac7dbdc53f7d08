"""A gateway environment on a provider whose sandboxes are containers, here `rootfs`: a sandbox each, and ways between them."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest

from agent_env.environments.contract import LiveEnvironment
from agent_env.places import Command, Completed, View
from agent_env.waiting import poll
from tests.environments.bench import Deployed, plan, run, standing
from tests.environments.test_gateway_environment import changed, listed


@pytest.fixture
def office(python_base: str, tmp_path: Path) -> Iterator[Deployed]:
    """A server behind a gateway."""
    with standing(tmp_path / "state", plan("tickets", provider="gateway"), provider="rootfs") as made:
        yield made


@pytest.fixture
def kept(python_base: str, postgres_image: str, tmp_path: Path) -> Iterator[Deployed]:
    """Two servers behind a gateway, with a database."""
    wanted = plan("tickets", "crm-x", provider="gateway", env_id="office", chosen={"env_state_type": "local_postgres"})
    with standing(tmp_path / "state", wanted, provider="rootfs") as made:
        yield made


async def supervisor(live: LiveEnvironment) -> psutil.Process:
    """The process that keeps the gateway's server process, as this machine numbers it."""
    (entry,) = [entry for entry in await (await live.place()).ledger() if entry.attempt == "image"]
    inside = [each for each in psutil.process_iter(["cmdline"]) if each.info["cmdline"] and "agent_env.gateway" in each.info["cmdline"]]
    (found,) = [each for each in inside if _numbers(each.pid)[-1] == entry.pid and each.parent() not in inside]
    return found


def _numbers(pid: int) -> list[int]:
    """Of a process in each of the namespaces that it is in, this machine's first."""
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("NSpid:"))
    return [int(word) for word in line.split()[1:]]


@pytest.mark.slow
def test_a_gateway_whose_first_process_was_killed_is_started_again_in_its_place_and_knows_what_it_knew(office: Deployed) -> None:
    """Building and unpacking takes longest; that a killed command is started again is tested in tests/rootfs/test_life.py."""

    async def body() -> None:
        async with office.found() as (_, live):
            await live.control.invoke("urn:agentenv:disable-tool/v1", {"role": "clerk", "tools": ["tickets_take"]})
            before, place = await live.life(), await live.place()  # type: ignore[attr-defined]
            os.kill((await supervisor(live)).pid, signal.SIGKILL)
            now = await poll(lambda: changed(live, before), within_seconds=60, what="another life of the gateway")
            assert now.ended == {}
            assert (await live.place()).id == place.id
            clerk = await live.agent_access("clerk", view=View.PROCESS)
            assert "tickets_take" not in await listed(clerk)
            assert "tickets_count" in await listed(clerk)

    run(body())


async def psql(live: LiveEnvironment, password: str, role: str, sql: str) -> Completed:
    """In the database's sandbox, over its loopback, as whoever comes from a server's does."""
    held = await live._making.hold(str(live.record.parts["servicedb"].sandbox_id), "rootfs")  # type: ignore[attr-defined]
    where = {"PGHOST": "127.0.0.1", "PGUSER": role, "PGDATABASE": "agentenv"}
    command = ["psql", "-X", "-q", "-t", "-A", "-v", "ON_ERROR_STOP=1", "-f", "-"]
    return await (await held.sandbox.machine()).run(Command(command, env=where, secrets={"PGPASSWORD": password}, stdin=sql.encode()))


@pytest.mark.slow
def test_every_server_is_led_to_the_database_with_a_role_of_its_own_and_nobody_comes_in_without_a_password(kept: Deployed) -> None:
    """Its image is unpacked first, which takes longest; what is known before that is told in test_preflight.py."""

    async def body() -> None:
        async with kept.found() as (_, live):
            assert list(live.record.parts) == ["tickets", "crm-x", "servicedb", "gateway"]
            assert live.record.sandbox_ids["service_db"] == {"servicedb": live.record.parts["servicedb"].sandbox_id}
            for name in ("tickets", "crm-x"):
                async with live.client(name).request("GET", "/environ") as answer:
                    url = urlsplit(json.loads(await answer.aread())["DATABASE_URL"])
                assert (url.username, url.hostname) == (name, "127.0.0.1")
                look = f"import socket; socket.create_connection(('127.0.0.1', {url.port}), timeout=60).close()"
                assert (await (await live.place(name)).run(Command(["python3", "-c", look]))).ok
                made = await psql(live, str(url.password), name, "CREATE TABLE own (id int PRIMARY KEY); INSERT INTO own VALUES (1);")
                assert made.ok, made.stderr
                other = "crm-x" if name == "tickets" else "tickets"
                assert not (await psql(live, str(url.password), name, f'SELECT * FROM "{other}".own;')).ok
            for role in ("agentenv_owner", "tickets"):
                assert b"authentication failed" in (await psql(live, str(url.password), role, "SELECT 1;")).stderr
            assert str(url.password) not in json.dumps(kept.record)
            told = await live.control.invoke("urn:agentenv:changes/v1", {"after_id": 0, "limit": 1000})
            assert sorted((each["schema_name"], each["table_name"]) for each in told["changes"]) == [("crm-x", "own"), ("tickets", "own")]
            await live.begin_changes("tickets")

    run(body())
