"""An environment's database: a real PostgreSQL beside its servers, with a role and a schema for each, and a log of every change."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING

from agent_env.documents.records import DeployedPart
from agent_env.environments.contract import ContainerWanted, DeployPlan, Making, SandboxWanted
from agent_env.environments.credentials import (
    DATABASE_HOST,
    DATABASE_NAME,
    DATABASE_PORT,
    OWNER,
    READER,
    database_password,
)
from agent_env.environments.images import name_of
from agent_env.environments.readiness import listening
from agent_env.errors import InfrastructureError, UnsupportedError
from agent_env.places import Command, Place
from agent_env.sandboxes.contract import LeadsToHost
from agent_env.waiting import deadline, poll

if TYPE_CHECKING:
    from agent_env.artifacts.image_artifacts import ImageSource

_IMAGE_USER_VARIABLES = {"POSTGRES_USER": OWNER, "POSTGRES_DB": DATABASE_NAME}
_PASSWORDS_ALWAYS = {"POSTGRES_INITDB_ARGS": "--auth-host=scram-sha-256 --auth-local=trust"}
"""Whoever comes through a relay comes from the database's own loopback, which the official image trusts by itself."""
_RESERVED = re.compile(r"pg_.*|public|information_schema|agent_env_internal|agentenv_owner|agentenv_reader|none")


@dataclass(frozen=True, slots=True)
class Database:
    """A database that is ready."""

    part: DeployedPart
    place: Place


def schema_problem(name: str) -> str | None:
    """Why a server of this name can't have a schema and a role of its own, or None."""
    return f"{name!r} is a name of the database's own" if _RESERVED.fullmatch(name.lower()) else None


async def deploy_database(
    making: Making, sandbox_id: str, image: ImageSource, servers: Sequence[str], *, networks: Sequence[str]
) -> Database:
    """Starts a database and prepares it for servers.

    Args:
        making: Makes the container.
        sandbox_id: Beside whose machine.
        image: An image of PostgreSQL, from version 14, that takes the variables of the official one.
        servers: Names of servers; each gets a role and a schema.
        networks: Where its servers are.

    Raises:
        ContainerNotRunningError: It ended; the message has the end of its log.
        DeadlineError: It was not ready in time.
        InfrastructureError: It could not be prepared.
    """
    password = database_password(making, sandbox_id, OWNER)
    place = await making.container(
        sandbox_id,
        ContainerWanted(DATABASE_HOST, image, env=_IMAGE_USER_VARIABLES, secrets={"POSTGRES_PASSWORD": password}, networks=tuple(networks)),
    )
    part = DeployedPart(
        kind="database",
        name=DATABASE_HOST,
        sandbox_id=sandbox_id,
        container_id=place.id,
        container_name=DATABASE_HOST,
        port=DATABASE_PORT,
        image=name_of(image),
    )
    await answering(place, password, making)
    await run_sql(place, password, prepared(making, sandbox_id, servers), making, "preparing the database")
    return Database(part, place)


async def deploy_database_apart(plan: DeployPlan, making: Making, image: ImageSource, servers: Sequence[str], port: int) -> Database:
    """The same in a sandbox of its own, where it answers on this machine's loopback to those who have a password.

    Args:
        plan: Whose database it is.
        making: Makes the sandbox.
        image: As of `deploy_database`.
        servers: Names of servers; each gets a role and a schema.
        port: Where it listens in its sandbox.

    Raises:
        UnsupportedError: Servers could not reach it.
        SandboxUnavailableError: It ended.
        DeadlineError: It was not ready in time.
        InfrastructureError: It could not be prepared, or lets in whoever comes.
    """
    # Passwords are derived of the sandbox's id, which nobody knows before there is one; this one is good for nothing afterwards.
    first = making.secret(secrets.token_hex(24))
    wanted = SandboxWanted(
        DATABASE_HOST,
        mode="container",
        image=image,
        ports=(port,),
        env={**_IMAGE_USER_VARIABLES, **_PASSWORDS_ALWAYS, "PGPORT": str(port)},
        secrets={"POSTGRES_PASSWORD": first},
        restart=True,
    )
    held = await making.sandbox(wanted, plan)
    if (await making.capabilities()).own_network and not isinstance(held.sandbox, LeadsToHost):
        why = f"nothing beside the sandboxes of {making.sandbox_provider!r} can be led to from inside them"
        raise UnsupportedError(f"servers could not reach the database: {why}", concerns=DATABASE_HOST, hint="deploy it with 'local'")
    place, sandbox_id, published = await held.sandbox.machine(), held.sandbox.info.sandbox_id, held.sandbox.published
    await answering(place, first, making, port)
    password = database_password(making, sandbox_id, OWNER)
    change = f"ALTER ROLE {identifier(OWNER)} PASSWORD {literal(password)};\n"
    await run_sql(place, first, change + prepared(making, sandbox_id, servers), making, "preparing the database")
    if (await place.run(_psql("SELECT 1;", first))).ok:
        raise InfrastructureError(
            f"the database of {name_of(image)} lets in whoever comes from its own loopback, as servers do here",
            concerns=DATABASE_HOST,
            hint="use an image that takes POSTGRES_INITDB_ARGS as the official one does, or deploy it with 'local'",
        )
    part = DeployedPart(
        kind="database",
        name=DATABASE_HOST,
        sandbox_id=sandbox_id,
        container_name=DATABASE_HOST,
        port=port,
        host_port=published.host_ports.get(port, port),
        image=name_of(image),
    )
    return Database(part, place)


async def answering(place: Place, password: str, making: Making, port: int = DATABASE_PORT) -> None:
    """Waits until the database takes queries, which is later than it listens.

    Args:
        place: The database.
        password: Its owner's.
        making: Has the limits.
        port: Where it listens.

    Raises:
        ContainerNotRunningError: It ended; the message has the end of its log.
        DeadlineError: It was not ready in time.
    """
    seconds = making.limits.database_ready_seconds
    await listening(place, port, what="the database", seconds=seconds, limits=making.limits)

    async def asked() -> bool | None:
        done = await place.run(_psql("SELECT 1;", password))
        return True if done.ok else None

    await poll(asked, within_seconds=seconds, what="the database's first answer", limits=making.limits)


def prepared(making: Making, sandbox_id: str, servers: Sequence[str]) -> str:
    """The SQL that makes the log of changes, and for each server its role and schema."""
    lines = [files("agent_env.environments").joinpath("servicedb.sql").read_text()]
    database = identifier(DATABASE_NAME)
    lines.append(f"CREATE ROLE {identifier(READER)} LOGIN PASSWORD {literal(database_password(making, sandbox_id, READER))};")
    lines.append(f"GRANT SELECT ON public._changelog TO {identifier(READER)};")
    lines.append(f"REVOKE ALL ON DATABASE {database} FROM PUBLIC;")
    lines.append(f"GRANT CONNECT ON DATABASE {database} TO {identifier(READER)};")
    for name in dict.fromkeys(servers):
        role = identifier(name)
        lines += [
            f"CREATE ROLE {role} LOGIN PASSWORD {literal(database_password(making, sandbox_id, name))};",
            # Its own schemas and trusted extensions, and nothing of anybody else's.
            f"GRANT CONNECT, CREATE, TEMPORARY ON DATABASE {database} TO {role};",
            f"CREATE SCHEMA {role} AUTHORIZATION {role};",
            f"ALTER ROLE {role} SET search_path = {role}, public;",
            f"SELECT agent_env_internal.install_changelog({literal(name)});",
        ]
    return "\n".join(lines)


async def watch_again(database: Place, making: Making, sandbox_id: str, name: str) -> None:
    """After a load: what a server holds now is the beginning, and no change."""
    password = database_password(making, sandbox_id, OWNER)
    await run_sql(
        database,
        password,
        f"SELECT agent_env_internal.install_changelog({literal(name)});",
        making,
        f"beginning the log of {name}'s changes",
    )


async def run_sql(place: Place, password: str, sql: str, making: Making, what: str) -> bytes:
    """Runs statements in one transaction, as the database's owner. Returns what they answered.

    Raises:
        InfrastructureError: One of them failed; nothing of them holds.
    """
    async with deadline(making.limits.database_ready_seconds, what):
        done = await place.run(_psql(sql, password, "--single-transaction"))
    if not done.ok:
        said = done.stderr.decode(errors="replace").strip()[-500:]
        raise InfrastructureError(f"{what} failed: {said or done.detail or done.ending}", concerns=DATABASE_HOST)
    return done.stdout


def _psql(sql: str, password: str, *options: str) -> Command:
    arguments = ["psql", "--no-psqlrc", "--quiet", "--tuples-only", "--no-align", "--set=ON_ERROR_STOP=1", *options, "--file=-"]
    where: Mapping[str, str] = {"PGHOST": "127.0.0.1", "PGUSER": OWNER, "PGDATABASE": DATABASE_NAME}
    return Command(arguments, env=where, secrets={"PGPASSWORD": password}, stdin=sql.encode())


def identifier(name: str) -> str:
    """A name as SQL has it, whatever it holds."""
    return '"{}"'.format(name.replace('"', '""').replace("\0", ""))


def literal(text: str) -> str:
    """A text as SQL has it."""
    return (
        "'{}'".format(text.replace("'", "''").replace("\0", ""))
        if "\\" not in text
        else "E'{}'".format(text.replace("\\", "\\\\").replace("'", "''").replace("\0", ""))
    )
