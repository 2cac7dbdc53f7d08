"""The database beside a gateway's servers: a real PostgreSQL, where each server has what is its own, and every change is told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator

import pytest

from agent_env.environments.contract import LiveEnvironment
from agent_env.environments.credentials import OWNER, READER, credentials_of, database_password
from agent_env.environments.deploy import problems
from agent_env.environments.faults import EnvironmentFailedError
from agent_env.environments.servicedb import identifier, literal
from agent_env.places import Command, Completed
from agent_env.waiting import poll
from tests.environments.bench import Deployed, World, plan, run, standing
from tests.environments.beside import kill, shown
from tests.environments.test_gateway_environment import changed

CHOSEN = {"env_state_type": "local_postgres"}


@pytest.fixture(scope="module")
def office(python_base: str, postgres_image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    """Two servers with a database beside them."""
    wanted = plan("tickets", "crm-x", provider="gateway", env_id="office", chosen=CHOSEN)
    with standing(tmp_path_factory.mktemp("db") / "state", wanted) as made:
        yield made


async def psql(here: World, live: LiveEnvironment, role: str, sql: str) -> Completed:
    """As a role would, from beside the database."""
    sandbox_id, database = str(live.record.sandbox_id), live.record.parts["servicedb"]
    password = database_password(here.makings[0], sandbox_id, role)
    told = credentials_of(here.makings[0], database, sandbox_id, database=True)
    place = await here.makings[0].place(sandbox_id, "local", (str(database.container_id), "servicedb"), told)
    where = {"PGHOST": "127.0.0.1", "PGUSER": role, "PGDATABASE": "agentenv"}
    command = ["psql", "-X", "-q", "-t", "-A", "-v", "ON_ERROR_STOP=1", "-f", "-"]
    return await place.run(Command(command, env=where, secrets={"PGPASSWORD": password}, stdin=sql.encode()))


async def changes(live: LiveEnvironment, after: int = 0) -> list[dict[str, object]]:
    answer = await live.control.invoke("urn:agentenv:changes/v1", {"after_id": after, "limit": 1000})
    return list(answer["changes"])


def test_every_server_is_told_its_own_address_of_it_and_nobody_can_look_that_up(office: Deployed) -> None:
    async def body() -> None:
        async with office.found() as (here, live):
            for name in ("tickets", "crm-x"):
                async with live.client(name).request("GET", "/environ") as answer:
                    told = json.loads(await answer.aread())
                password = database_password(here.makings[0], str(live.record.sandbox_id), name)
                assert told["DATABASE_URL"].startswith(f"postgresql://{name}:{password}@servicedb:5432/agentenv?options=")
            return

    run(body())
    ids = [part["container_id"] for part in office.record["parts"].values()]
    assert "postgresql://" not in shown(ids)
    assert "postgresql://" not in json.dumps(office.record)


def test_a_server_has_its_own_schema_and_nobody_elses(office: Deployed) -> None:
    async def body() -> None:
        async with office.found() as (here, live):
            made = await psql(here, live, "tickets", "CREATE TABLE own (id int PRIMARY KEY, name text); SELECT current_schema();")
            assert made.stdout.decode().strip() == "tickets", made.stderr
            for sql in (
                'CREATE TABLE "crm-x".theirs (id int);',
                'SELECT * FROM "crm-x".theirs;',
                "SELECT * FROM public._changelog;",
                "DELETE FROM public._changelog;",
                "DROP TABLE public._changelog;",
                "SELECT agent_env_internal.install_changelog('tickets');",
                "ALTER TABLE own DISABLE TRIGGER agent_env_changelog; SET session_replication_role = replica;",
                f"SET ROLE {identifier(OWNER)};",
                "CREATE TABLE public.mine (id int);",
            ):
                done = await psql(here, live, "tickets", sql)
                assert not done.ok, sql

    run(body())


def test_every_change_is_told_with_its_row_and_what_became_of_it(office: Deployed) -> None:
    sql = """
    CREATE TABLE orders (region text, number int, total int, PRIMARY KEY (region, number));
    CREATE TABLE keyless (word text);
    INSERT INTO orders VALUES ('n', 1, 10);
    UPDATE orders SET total = 11 WHERE number = 1;
    UPDATE orders SET total = 11 WHERE number = 1;
    INSERT INTO keyless VALUES ('x');
    DELETE FROM orders;
    """

    async def body() -> None:
        async with office.found() as (here, live):
            done = await psql(here, live, "crm-x", sql)
            assert done.ok, done.stderr
            found = [each for each in await changes(live) if each["schema_name"] == "crm-x"]
            assert [(each["operation"], each["table_name"]) for each in found] == [
                ("INSERT", "orders"),
                ("UPDATE", "orders"),
                ("INSERT", "keyless"),
                ("DELETE", "orders"),
            ]
            assert json.loads(str(found[0]["row_id"])) == {"region": "n", "number": 1}
            assert found[0]["changed_fields"] == {"region": "n", "number": 1, "total": 10}
            assert found[1]["changed_fields"] == {"total": {"old": 10, "new": 11}}
            assert found[2]["row_id"] is None
            assert [each["id"] for each in found] == sorted(each["id"] for each in found)  # type: ignore[type-var]

    run(body())


def test_what_was_loaded_is_the_beginning_and_no_change(office: Deployed) -> None:
    async def body() -> None:
        async with office.found() as (here, live):
            await psql(here, live, "tickets", "CREATE TABLE IF NOT EXISTS loaded (id int PRIMARY KEY); INSERT INTO loaded VALUES (1);")
            before = await changes(live)
            assert any(each["schema_name"] == "tickets" for each in before)
            await live.begin_changes("tickets")
            assert not [each for each in await changes(live) if each["schema_name"] == "tickets"]
            await psql(here, live, "tickets", "INSERT INTO loaded VALUES (2);")
            (later,) = [each for each in await changes(live) if each["schema_name"] == "tickets"]
            assert later["row_id"] == "2"
            assert later["id"] > max(each["id"] for each in before)  # type: ignore[operator,type-var]

    run(body())


def test_the_gateway_reads_the_log_and_can_do_nothing_else(office: Deployed) -> None:
    async def body() -> None:
        async with office.found() as (here, live):
            assert (await psql(here, live, READER, "SELECT count(*) FROM public._changelog;")).ok
            for sql in ("DELETE FROM public._changelog;", "SELECT * FROM tickets.own;", "CREATE SCHEMA x;"):
                assert not (await psql(here, live, READER, sql)).ok, sql

    run(body())


def test_a_database_that_was_killed_during_calls_is_started_again_and_has_what_was_committed(office: Deployed) -> None:
    """Must-show 5: calls go on without it, and later changes are told after the earlier ones."""

    async def body() -> None:
        async with office.found() as (here, live):
            rows = "CREATE TABLE IF NOT EXISTS outlives (id int PRIMARY KEY); INSERT INTO outlives VALUES (1);"
            assert (await psql(here, live, "tickets", rows)).ok
            earlier = await changes(live)
            before = await live.life()  # type: ignore[attr-defined]

            async def call() -> bool:
                return (await live.control.call("tickets_count", {"sku": "a"}))["isError"] is False

            over = asyncio.Event()
            async with asyncio.TaskGroup() as group:
                calling = group.create_task(_until(over, call))
                await asyncio.to_thread(kill, office.record["parts"]["servicedb"]["container_id"], innermost=False)
                assert await call(), "a database that is away costs no call"
                now = await changed(live, before)
                while now is None:  # it was asked in the moment before its end
                    now = await changed(live, before)
                over.set()
            assert calling.result()
            assert now.ended == {}
            assert {name for name in now.started if now.started[name] != before.started[name]} == {"servicedb"}
            again = await psql(here, live, "tickets", "SELECT count(*) FROM outlives; INSERT INTO outlives VALUES (2);")
            assert again.stdout.decode().split() == ["1"], again.stderr

            async def later() -> list[dict[str, object]] | None:
                try:
                    return [each for each in await changes(live) if each["id"] not in {one["id"] for one in earlier}]
                except EnvironmentFailedError:  # the gateway leaves a database alone for a moment after it did not answer
                    return None

            (new,) = await poll(later, within_seconds=60, what="the log of changes")
            assert (new["schema_name"], new["row_id"]) == ("tickets", "2")

    run(body())


async def _until(over: asyncio.Event, call: Callable[[], Awaitable[bool]]) -> bool:
    """Calls again and again. Whether all went well."""
    well = True
    while not over.is_set():
        well &= await call()
    return well


@pytest.mark.parametrize("name", ["pg_catalog", "public", "agentenv_owner", "information_schema"])
def test_a_server_can_not_be_called_as_something_of_the_databases_own(name: str) -> None:
    found = [problem.message for problem in problems(plan(name, provider="gateway"))]
    assert any("a name of the database's own" in message for message in found)


def test_names_and_texts_are_quoted_whatever_they_hold() -> None:
    assert identifier('a"b') == '"a""b"'
    assert literal("it's") == "'it''s'"
    assert literal("a\\'b") == "E'a\\\\''b'"
