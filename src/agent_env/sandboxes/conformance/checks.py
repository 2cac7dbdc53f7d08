"""The checks. Each makes what it needs, through a provider as a new process would make it, and leaves nothing."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import PurePosixPath

from agent_env.errors import AgentEnvError, SandboxNotFoundError, SupersededError
from agent_env.places import Command, Ending, LedgerEntry, Missing, Place, Upload
from agent_env.sandboxes.contract import Level, Provider, Sandbox, SandboxSpec

MakeProvider = Callable[[], Provider]
"""Makes a provider as another process would: sharing nothing but what is written down."""
Check = Callable[[MakeProvider], Awaitable[None]]

LIMITS = frozenset({"memory", "processes", "cpu", "disk", "ttl"})
_SHORT_SECONDS = 0.3


def new_spec() -> SandboxSpec:
    """A small sandbox with a fresh id, token and label."""
    name = secrets.token_hex(6)
    return SandboxSpec(f"check-{name}", token=f"token-{name}", labels={"agentenv.home": f"home-{name}", "agentenv.run": "run-check"})


@asynccontextmanager
async def sandbox_of(make: MakeProvider) -> AsyncIterator[tuple[SandboxSpec, Sandbox, Place]]:
    """A fresh sandbox and its main place, removed afterwards."""
    provider, spec = make(), new_spec()
    sandbox = await provider.create(spec)
    try:
        yield spec, sandbox, await sandbox.machine()
    finally:
        await sandbox.aclose()
        await provider.destroy(spec.sandbox_id)
        await provider.aclose()


async def a_place_keeps_files_and_runs_commands(make: MakeProvider) -> None:
    """Bytes in, bytes out, also those that are no text; the exit code is the command's own."""
    data = bytes(range(256))
    async with sandbox_of(make) as (_, _, place):
        home = await place.run(Command(["pwd"]))
        path = PurePosixPath(home.stdout.decode().strip()) / "kept file"
        await place.put([Upload(path, data)])
        assert await place.read(path) == data
        done = await place.run(Command(["sh", "-c", 'cat "$1"; exit 7', "sh", str(path)]))
        assert (done.ending, done.exit_code, done.stdout) == (Ending.EXITED, 7, data)
        assert isinstance(await place.read(PurePosixPath("/nowhere/at/all")), Missing)


async def every_limit_has_an_honest_level(make: MakeProvider) -> None:
    """Capabilities and each sandbox say how each limit holds, and agree."""
    told = (await make().capabilities()).limits
    assert set(told) == LIMITS
    async with sandbox_of(make) as (_, sandbox, _):
        assert set(sandbox.levels) == LIMITS
        assert all(isinstance(level, Level) for level in sandbox.levels.values())
        assert dict(sandbox.levels) == dict(told)


async def reopening_gives_the_same_place(make: MakeProvider) -> None:
    """Another process finds the same files, ports and identity."""
    async with sandbox_of(make) as (spec, sandbox, place):
        home = PurePosixPath((await place.run(Command(["pwd"]))).stdout.decode().strip())
        await place.put([Upload(home / "kept", b"before")])
        again = await make().attach(spec.sandbox_id, epoch=spec.epoch + 1, token=spec.token)
        reopened = await again.machine()
        assert (reopened.id, reopened.kind) == (place.id, place.kind)
        assert await reopened.read(home / "kept") == b"before"
        assert again.published == sandbox.published
        assert dict(again.info.labels) == dict(spec.labels)
        await again.aclose()


async def an_older_owner_is_refused(make: MakeProvider) -> None:
    """After a takeover an older epoch can't come back."""
    async with sandbox_of(make) as (spec, _, _):
        newer = await make().attach(spec.sandbox_id, epoch=spec.epoch + 2, token=spec.token)
        try:
            await make().attach(spec.sandbox_id, epoch=spec.epoch + 1, token=spec.token)
        except SupersededError:
            return
        finally:
            await newer.aclose()
        raise AssertionError("an older owner was let in")


async def a_wrong_token_is_refused(make: MakeProvider) -> None:
    """Knowing the id is not enough."""
    async with sandbox_of(make) as (spec, _, _):
        try:
            other = await make().attach(spec.sandbox_id, epoch=spec.epoch + 1, token="another")
        except AgentEnvError:
            return
        await other.aclose()
        raise AssertionError("a wrong token was let in")


async def an_unknown_sandbox_is_not_found(make: MakeProvider) -> None:
    """A named error, and nothing is made or removed."""
    unknown = f"check-{secrets.token_hex(6)}"
    assert not await make().destroy(unknown)
    try:
        await make().attach(unknown, epoch=1, token="t")
    except SandboxNotFoundError:
        return
    raise AssertionError("an unknown sandbox was found")


async def removing_is_whole_and_can_be_repeated(make: MakeProvider) -> None:
    """From another process, twice; afterwards it is in no list."""
    provider, spec = make(), new_spec()
    sandbox = await provider.create(spec)
    await sandbox.aclose()
    assert await make().destroy(spec.sandbox_id)
    assert not await make().destroy(spec.sandbox_id)
    assert [info async for info in make().list(spec.labels)] == []


async def a_list_holds_only_what_carries_the_labels(make: MakeProvider) -> None:
    """All of them must match."""
    async with sandbox_of(make) as (spec, _, _):
        ids = [info.sandbox_id async for info in make().list(spec.labels)]
        assert ids == [spec.sandbox_id]
        assert [info async for info in make().list({**spec.labels, "agentenv.run": "another"})] == []


async def a_command_that_times_out_leaves_nothing(make: MakeProvider) -> None:
    """Also not a grandchild in a session of its own that ignores SIGTERM."""
    script = "trap '' TERM; (setsid sh -c \"trap '' TERM; while :; do sleep 60; done\" &); while :; do sleep 60; done"
    async with sandbox_of(make) as (_, _, place):
        done = await place.run(Command(["sh", "-c", script], timeout_seconds=_SHORT_SECONDS, kill_grace_seconds=_SHORT_SECONDS))
        assert done.ending is Ending.TIMED_OUT
        assert _running(await place.ledger()) == []


async def stopping_an_attempt_ends_what_it_left(make: MakeProvider) -> None:
    """Background children of a finished command belong to its attempt."""
    async with sandbox_of(make) as (_, _, place):
        await place.run(Command(["sh", "-c", "sleep 600 >/dev/null 2>&1 &"], attempt="attempt-1"))
        assert await place.stop_attempt("attempt-1") >= 1
        assert await place.stop_attempt("attempt-1") == 0


def _running(ledger: Sequence[LedgerEntry]) -> list[str]:
    return [entry.argv0 for entry in ledger if entry.running]


CHECKS: Sequence[Check] = (
    a_place_keeps_files_and_runs_commands,
    every_limit_has_an_honest_level,
    reopening_gives_the_same_place,
    an_older_owner_is_refused,
    a_wrong_token_is_refused,
    an_unknown_sandbox_is_not_found,
    removing_is_whole_and_can_be_repeated,
    a_list_holds_only_what_carries_the_labels,
    a_command_that_times_out_leaves_nothing,
    stopping_an_attempt_ends_what_it_left,
)
