"""Making, finding and removing: after any death at any moment, nothing that nobody owns is left."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from agent_env.defaults import DEFAULT_LIMITS
from agent_env.documents.network import NetworkMode, NetworkPolicy
from agent_env.errors import InfrastructureError, PlaceLostError, SandboxNotFoundError, SupersededError, UnsupportedError, UserError
from agent_env.places import Command, Upload
from agent_env.sandboxes.confined import probe, removal
from agent_env.sandboxes.confined.processes import Identity, marked
from agent_env.sandboxes.confined.records import Facts, Records
from tests.processes import forked
from tests.sandboxes.people import MINE, WAYS, World, act, in_child, spec, world


@pytest.fixture(name="here")
def _here() -> Iterator[World]:
    with world("root" if os.geteuid() == 0 else "user without bubblewrap") as made:
        yield made


def groups(sandbox_id: str) -> list[str]:
    return [str(path) for path in Path("/sys/fs/cgroup").glob(f"*/agentenv/{sandbox_id}-*")]


def nothing_left(here: World, sandbox_id: str) -> None:
    assert here.left() == []
    # What its maker's death caught between fork and exec carried no mark yet: it finds its folder gone, and ends by itself.
    assert all(process.wait_gone(10.0) for process in marked(sandbox_id))
    assert list(marked(sandbox_id)) == []
    assert groups(sandbox_id) == []
    assert str(here.work) not in Path("/proc/self/mountinfo").read_text()


async def make_and_leave(here: World, sandbox_id: str) -> None:
    sandbox = await here.provider().create(spec(sandbox_id))
    place = await sandbox.machine()
    await place.put([Upload(PurePosixPath("/app/kept"), b"kept by the place")])
    await place.run(Command(["sh", "-c", "sleep 600 & echo $! > /app/pid"], attempt="a-1"))
    os.kill(os.getpid(), signal.SIGKILL)


async def destroyed(here: World, sandbox_id: str) -> bool:
    """Whether a provider, which asks the engine here as well, has found and removed it."""
    async with aclosing(here.provider()) as provider:
        return await provider.destroy(sandbox_id)


def killed_in(work: Any) -> None:
    """Runs the work in a process that ends by SIGKILL."""
    _, status = os.waitpid(forked(lambda: asyncio.run(work())), 0)
    assert os.WIFSIGNALED(status)


def test_a14_after_a_kill_of_its_maker_another_process_finds_the_same_place(here: World) -> None:
    killed_in(lambda: make_and_leave(here, f"{MINE}-orphan"))

    async def resume() -> tuple[Any, Any, Any]:
        sandbox = await here.provider().attach(f"{MINE}-orphan", epoch=2, token=f"t-{MINE}-orphan")
        place = await sandbox.machine()
        kept = await place.read(PurePosixPath("/app/kept"))
        running = await place.run(Command(["sh", "-c", "kill -0 $(cat /app/pid) && hostname"]))
        await sandbox.aclose()
        return kept, running.stdout, sandbox.info

    kept, running, info = asyncio.run(resume())
    assert kept == b"kept by the place"
    assert running == f"{MINE}-orphan\n".encode()
    assert info.alive
    assert asyncio.run(destroyed(here, f"{MINE}-orphan"))
    nothing_left(here, f"{MINE}-orphan")
    assert not asyncio.run(destroyed(here, f"{MINE}-orphan"))


def test_d1_killed_at_any_moment_of_making_everything_is_found_and_removed(here: World) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    chance = random.Random(seed)
    for number in range(12):
        sandbox_id = f"{MINE}-cut{number}"
        pause = chance.uniform(0, 0.03)

        def cut(sandbox_id: str = sandbox_id, pause: float = pause) -> None:
            signal.setitimer(signal.ITIMER_REAL, max(pause, 1e-4))
            asyncio.run(make_and_leave(here, sandbox_id))

        _, status = os.waitpid(forked(cut), 0)
        assert os.WIFSIGNALED(status)
        asyncio.run(_remove_all(here))
        nothing_left(here, sandbox_id)


async def _remove_all(here: World) -> None:
    async with aclosing(here.provider()) as provider:
        for info in [info async for info in provider.list({"agentenv.home": "h"})]:
            await provider.destroy(info.sandbox_id)


def test_d1_cancelled_at_any_moment_of_making_nothing_is_left(here: World) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    chance = random.Random(seed)

    async def cut(number: int) -> None:
        making = asyncio.create_task(here.provider().create(spec(f"{MINE}-cancel{number}")))
        await asyncio.wait([making], timeout=chance.uniform(0, 0.03))
        making.cancel()
        done, _ = await asyncio.wait([making])
        for task in done:
            if not task.cancelled() and task.exception() is None:
                await task.result().aclose()
                await here.provider().destroy(f"{MINE}-cancel{number}")

    for number in range(10):
        asyncio.run(cut(number))
        nothing_left(here, f"{MINE}-cancel{number}")


@pytest.mark.parametrize("fault", ["no such helper", "a helper that ends", "a wrong token"])
def test_f2_a_start_that_fails_leaves_nothing(here: World, fault: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from agent_env.sandboxes.confined import link, making

    ends = tmp_path / "ends"
    ends.write_bytes(Path("/bin/false").read_bytes())
    ends.chmod(0o755)
    if fault == "no such helper":
        monkeypatch.setattr(making, "HELPER_INSIDE", "/nowhere")
    elif fault == "a helper that ends":
        monkeypatch.setattr(link, "payload", lambda *_: ["/bin/false"])
    else:
        monkeypatch.setattr(link, "token_of", iter(("one", "other")).__next__ if False else _alternating())
    with pytest.raises(InfrastructureError) as caught:
        asyncio.run(here.provider().create(spec(f"{MINE}-fails")))
    assert f"{MINE}-fails" in str(caught.value.concerns) or "sandbox" in str(caught.value)
    nothing_left(here, f"{MINE}-fails")


def _alternating() -> Any:
    answers = iter(("one", "other"))
    return lambda _: next(answers)


def test_a18_two_homes_never_touch_each_other() -> None:
    way = "root" if os.geteuid() == 0 else "user without bubblewrap"
    with world(way) as one, world(way) as other:

        async def both() -> None:
            mine = await one.provider().create(spec(f"{MINE}-mine", labels={"agentenv.home": "one"}))
            theirs = await other.provider().create(spec(f"{MINE}-theirs", labels={"agentenv.home": "other"}))
            async with aclosing(one.provider()) as provider:
                assert [info.sandbox_id async for info in provider.list({})] == [f"{MINE}-mine"]
            assert not await destroyed(one, f"{MINE}-theirs")
            assert await destroyed(one, f"{MINE}-mine")
            alive = await (await theirs.machine()).run(Command(["echo", "alive"]))
            assert alive.stdout == b"alive\n"
            await mine.aclose()
            await theirs.aclose()
            assert await destroyed(other, f"{MINE}-theirs")

        asyncio.run(both())
        nothing_left(one, f"{MINE}-mine")
        nothing_left(other, f"{MINE}-theirs")


def test_a18_two_homes_with_one_work_root_list_only_their_own(here: World, tmp_path: Path) -> None:
    async def both() -> list[list[str]]:
        async with aclosing(here.provider()) as first, aclosing(replace(here, state=tmp_path).provider()) as second:
            sandboxes = [
                await first.create(spec(f"{MINE}-first", labels={"agentenv.home": "one"})),
                await second.create(spec(f"{MINE}-second", labels={"agentenv.home": "two"})),
            ]
            seen = [
                [info.sandbox_id async for info in provider.list({"agentenv.home": home})]
                for provider, home in ((first, "one"), (second, "two"))
            ]
            for sandbox in sandboxes:
                await sandbox.aclose()
            await first.destroy(f"{MINE}-first")
            await second.destroy(f"{MINE}-second")
            return seen

    assert asyncio.run(both()) == [[f"{MINE}-first"], [f"{MINE}-second"]]
    nothing_left(here, f"{MINE}-first")


def test_a12_a_folder_whose_record_is_lost_is_found_by_its_labels_and_removed_with_its_processes(here: World) -> None:
    killed_in(lambda: make_and_leave(here, f"{MINE}-lost"))
    shutil.rmtree(Records(here.state).folder(f"{MINE}-lost"))

    async def found() -> list[str]:
        async with aclosing(here.provider()) as provider:
            there = [info.sandbox_id async for info in provider.list({"agentenv.home": "h"})]
            with pytest.raises(SandboxNotFoundError):
                await provider.attach(f"{MINE}-lost", epoch=1, token="")
            return there

    assert asyncio.run(found()) == [f"{MINE}-lost"]
    assert asyncio.run(destroyed(here, f"{MINE}-lost"))
    assert here.left() == []
    assert list(marked(f"{MINE}-lost")) == []
    groups = Path("/sys/fs/cgroup")
    assert [found for above in ("", "*/") for found in groups.glob(f"{above}agentenv/{MINE}-lost-*")] == []


class Returning(Identity):
    """A process that is there again whenever it was ended, as one of a chain that forks without end can be."""

    @property
    def alive(self) -> bool:
        return True

    def kill(self, signal_number: int = signal.SIGKILL) -> bool:
        return True

    def wait_gone(self, seconds: float) -> bool:
        return True


def test_what_is_there_again_whenever_it_was_ended_is_given_up_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(removal, "marked", lambda sandbox_id: [Returning(4242, 1)])
    with pytest.raises(InfrastructureError, match="process 4242 of sandbox local-again can't be ended"):
        removal.stop(Facts("local-again", ""), limits=replace(DEFAULT_LIMITS, cleanup_seconds=0.05))


def test_d8_after_a_reboot_a_place_is_lost_and_can_be_removed(here: World) -> None:
    records = Records(here.state)

    async def make() -> None:
        await (await here.provider().create(spec(f"{MINE}-boot"))).aclose()

    asyncio.run(make())
    facts = records.read(f"{MINE}-boot")
    assert facts is not None
    first = Identity.load(facts.first)
    records.write(replace(facts, boot="another boot"))
    with pytest.raises(PlaceLostError, match="restarted"):
        asyncio.run(here.provider().attach(f"{MINE}-boot", epoch=2, token=f"t-{MINE}-boot"))
    records.write(facts)
    assert asyncio.run(destroyed(here, f"{MINE}-boot"))
    assert first is not None
    assert not first.alive
    nothing_left(here, f"{MINE}-boot")


def test_an_unknown_sandbox_is_not_found(here: World) -> None:
    with pytest.raises(SandboxNotFoundError):
        asyncio.run(here.provider().attach(f"{MINE}-deadbeef", epoch=1, token=""))
    with pytest.raises(UserError):
        asyncio.run(here.provider().attach("../../etc", epoch=1, token=""))


def test_d3_a_later_owner_cuts_the_earlier_one(here: World) -> None:
    async def two() -> None:
        provider = here.provider()
        old = await provider.create(spec(f"{MINE}-owner", epoch=1))
        new = await provider.attach(f"{MINE}-owner", epoch=2, token=f"t-{MINE}-owner")
        with pytest.raises((SupersededError, InfrastructureError)):
            await (await old.machine()).start(Command(["true"]))
        with pytest.raises(SupersededError):
            await provider.attach(f"{MINE}-owner", epoch=1, token=f"t-{MINE}-owner")
        assert (await (await new.machine()).run(Command(["true"]))).ok
        await new.aclose()
        await old.aclose()
        await provider.destroy(f"{MINE}-owner")

    asyncio.run(two())


async def hostile_tree(here: World) -> list[str]:
    sandbox = await here.provider().create(spec(f"{MINE}-tree"))
    outside = here.home / "outside"
    outside.mkdir()
    (outside / "file").write_text("not ours")
    script = f"""
import os
os.chdir('/app')
os.symlink({str(outside)!r}, 'link'); os.symlink('/', 'root'); os.symlink('{outside}/file', '/tmp/file')
os.makedirs('closed/inner'); open('closed/inner/f', 'w').close(); os.chmod('closed/inner', 0o500); os.chmod('closed', 0)
for _ in range(1100):
    os.mkdir('deep'); os.chdir('deep')
open('end', 'w').close()
os.mkfifo('/app/fifo')
"""
    done = await (await sandbox.machine()).run(Command(["python3", "-c", script]))
    assert done.ok, done.stderr
    await sandbox.aclose()
    await here.provider().destroy(f"{MINE}-tree")
    return [(outside / "file").read_text(), *here.left()]


@pytest.mark.parametrize("way", WAYS)
def test_removing_follows_no_link_and_handles_closed_and_very_deep_folders(way: str) -> None:
    assert act(way, hostile_tree) == ["not ours"]


SHIMS = ("timeout", "find", "bash", "python", "python3", "unzip", "ps", "curl", "sudo", "docker")


def test_a16_nothing_of_the_machines_own_tools_is_needed(here: World, tmp_path: Path) -> None:
    for name in SHIMS:
        (tmp_path / name).write_text("#!/bin/sh\necho a tool of the host was called >&2\nexit 97\n")
        (tmp_path / name).chmod(0o755)

    async def run() -> bytes:
        sandbox = await here.provider().create(spec(f"{MINE}-shims"))
        done = await (await sandbox.machine()).run(Command(["sh", "-c", "sudo -E -n -u root id -u"]))
        await sandbox.aclose()
        await here.provider().destroy(f"{MINE}-shims")
        return done.stdout + done.stderr

    def shimmed() -> bytes:
        os.environ["PATH"] = f"{tmp_path}"
        return asyncio.run(run())

    assert in_child(shimmed, ordinary=False) == b"0\n"


def test_what_cannot_be_made_is_refused_with_every_reason(here: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent/socket")  # an engine that is away would not help: none is wanted
    provider = here.provider(isolation="namespaces")
    wanted = spec(f"{MINE}-no", mode="fleet", network=NetworkPolicy(mode=NetworkMode.ALLOWLIST, allow_hosts=("https://example.org",)))
    reasons = provider.problems(wanted, asyncio.run(provider.capabilities()))
    assert len(reasons) == 2
    provider._known_machine = replace(probe.survey(), is_root=False, bwrap=None, user_namespaces="user.max_user_namespaces is 0")
    with pytest.raises(UnsupportedError, match="--unsafe-host") as caught:
        asyncio.run(provider.create(spec(f"{MINE}-no")))
    assert "bubblewrap" in str(caught.value)
    assert here.left() == []


def test_an_allow_list_without_entries_denies_everything(here: World) -> None:
    async def run() -> tuple[str, bytes]:
        sandbox = await here.provider().create(spec(f"{MINE}-deny", network=NetworkPolicy(mode=NetworkMode.ALLOWLIST)))
        done = await (await sandbox.machine()).run(Command(["sh", "-c", "cat /proc/net/dev | tail -n +3 | cut -d: -f1"]))
        await sandbox.aclose()
        await here.provider().destroy(f"{MINE}-deny")
        return str(sandbox.info.facts["network"]["how"]), done.stdout.strip()  # type: ignore[index]

    assert asyncio.run(run()) == ("none", b"lo")


def test_a_second_sandbox_of_the_same_id_is_refused_and_the_first_lives(here: World) -> None:
    async def twice() -> None:
        first = await here.provider().create(spec(f"{MINE}-twice"))
        with pytest.raises(UserError, match="exists already"):
            await here.provider().create(spec(f"{MINE}-twice"))
        assert (await (await first.machine()).run(Command(["true"]))).ok
        await first.aclose()
        await here.provider().destroy(f"{MINE}-twice")

    asyncio.run(twice())
    nothing_left(here, f"{MINE}-twice")


def test_a18_the_same_id_in_two_homes_is_two_sandboxes() -> None:
    way = "root" if os.geteuid() == 0 else "user without bubblewrap"
    with world(way) as one, world(way) as other:

        async def both() -> bytes:
            mine = await one.provider().create(spec(f"{MINE}-same"))
            theirs = await other.provider().create(spec(f"{MINE}-same"))
            await mine.aclose()
            await one.provider().destroy(f"{MINE}-same")
            alive = await (await theirs.machine()).run(Command(["echo", "alive"]))
            await theirs.aclose()
            await other.provider().destroy(f"{MINE}-same")
            return alive.stdout

        assert asyncio.run(both()) == b"alive\n"
        nothing_left(other, f"{MINE}-same")
