"""The keeper's own life: one an installation, started on need, replaced after a kill, gone when idle, and told by its records alone."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import stat
import threading
import urllib.request
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path

import pytest

from agent_env.documents.network import NetworkMode, NetworkPolicy
from agent_env.errors import PortTakenError, SandboxUnavailableError
from agent_env.host import boot_seconds
from agent_env.keeper import Carried, Egress, FromHost, ToHost, carry, drop, installed_status, relay_token, stale_records
from agent_env.keeper.client import recorded_owner
from agent_env.keeper.records import Records
from agent_env.places import Command, Place
from agent_env.places.ports import candidates, is_free
from agent_env.sandboxes.contract import SandboxSpec
from agent_env.sandboxes.local.provider import LocalProvider
from agent_env.waiting import poll
from tests.keeper.world import GOOD, LIMITS, Web, allowed, keeper_gone, provider, web
from tests.processes import is_alive
from tests.sandboxes.people import MINE, World, spec, world


@pytest.fixture(name="here")
def _here() -> Iterator[World]:
    with world("root" if os.geteuid() == 0 else "user without bubblewrap") as made:
        yield made
        asyncio.run(keeper_gone(made))


@pytest.fixture(name="served")
def _served() -> Iterator[Web]:
    with web(0) as (found,):
        yield found


async def fetch(place: Place, url: str, *options: str) -> bytes:
    done = await place.run(Command(["curl", "-sS", "-m", "30", *options, url]))
    return done.stdout + done.stderr


def shown_of(pid: int) -> bytes:
    """A process's command line and environment."""
    return Path(f"/proc/{pid}/cmdline").read_bytes() + Path(f"/proc/{pid}/environ").read_bytes()


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def keepers(here: World) -> list[int]:
    """Every process of this machine that is a keeper of that installation."""
    wanted = (b"agent_env.keeper", str(here.state).encode())
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and all(part in (entry / "cmdline").read_bytes() for part in wanted):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


async def keeper_pid(here: World) -> int:
    pid = (await installed_status(here.state)).pid
    assert pid is not None
    return pid


def listing(*hosts: str) -> NetworkPolicy:
    return NetworkPolicy(mode=NetworkMode.ALLOWLIST, allow_hosts=hosts)


@asynccontextmanager
async def relayed(here: World, *relays: Egress | FromHost | ToHost, name: str = f"{MINE}-relayed") -> AsyncIterator[Place]:
    """A place without any network, with relays that the test asks for."""
    maker = provider(here)
    made = await maker.create(spec(name, network=NetworkPolicy(mode=NetworkMode.NONE)))
    try:
        reach = {"unix": str(here.state / "sandboxes" / name / "helper.sock")}
        await carry(here.state, Carried(name, reach, relays), limits=LIMITS)
        yield await made.machine()
    finally:
        await drop(here.state, name)
        await made.aclose()
        await maker.destroy(name)


async def test_a_place_without_an_allow_list_starts_no_keeper(here: World) -> None:
    made = await provider(here).create(spec(f"{MINE}-free"))
    assert (await (await made.machine()).run(Command(["true"]))).ok
    await made.aclose()
    await provider(here).destroy(f"{MINE}-free")
    assert not (here.state / "keeper").exists()


async def test_it_is_private_nobodys_child_and_knows_nothing_of_its_starter(
    here: World, served: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_API_KEY", "canary-4b1f")
    async with allowed(here, [f"{GOOD}:{served.port}"]):
        folder = here.state / "keeper"
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in [folder, *folder.iterdir()]}
        assert modes["keeper"] == modes["places"] == 0o700
        assert modes["keeper.sock"] == 0o600
        token = relay_token(here.state, f"{MINE}-allowed")
        assert not [path for path in folder.rglob("*") if path.is_file() and token in path.read_text()]
        pid = await keeper_pid(here)
        assert os.getsid(pid) != os.getsid(0)
        assert parent(pid) != os.getpid()
        assert token.encode() not in shown_of(pid)
        assert b"canary-4b1f" not in shown_of(pid)
        owner = recorded_owner(here.state)
        assert owner is not None
        assert owner.pid == pid
        os.kill(pid, signal.SIGKILL)
        await until_dead(pid)
        assert owner.life() == "dead"


async def until_dead(pid: int) -> None:
    async def gone() -> bool | None:
        return None if is_alive(pid) else True

    await poll(gone, within_seconds=60, what="the killed keeper's end")


async def through_kills(here: World, served: Web, times: int) -> None:
    async with allowed(here, [f"{GOOD}:{served.port}"]) as (_, place):
        pids = set()
        for number in range(times):
            pids.add(pid := await keeper_pid(here))
            os.kill(pid, signal.SIGKILL)
            assert await fetch(place, f"http://{GOOD}:{served.port}/{number}") == f"good GET /{number} 0".encode()
        assert len(pids) == times


async def test_a_killed_keeper_is_replaced_and_who_connects_meanwhile_waits(here: World, served: Web) -> None:
    await through_kills(here, served, 3)


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_of_sixty_killed_keepers_none_loses_a_request(here: World, served: Web) -> None:
    await through_kills(here, served, 60)


async def test_what_a_killed_keeper_carried_is_carried_again_when_a_later_process_attaches(here: World, served: Web) -> None:
    maker = provider(here)
    async with allowed(here, [f"{GOOD}:{served.port}"]) as (first, _):
        await first.aclose()
        os.kill(await keeper_pid(here), signal.SIGKILL)
        again = await maker.attach(f"{MINE}-allowed", epoch=2, token=f"t-{MINE}-allowed")
        assert b"good" in await fetch(await again.machine(), f"http://{GOOD}:{served.port}/")
        await again.aclose()


async def test_a_new_keeper_carries_for_every_recorded_place_without_being_told(here: World, served: Web) -> None:
    hosts = [f"{GOOD}:{served.port}"]
    async with allowed(here, hosts, name=f"{MINE}-one") as (one, _), allowed(here, hosts, name=f"{MINE}-two"):
        await one.aclose()  # nobody stands by for it any more
        os.kill(await keeper_pid(here), signal.SIGKILL)

        async def both() -> bool | None:
            status = await installed_status(here.state)
            return True if {f"{MINE}-one", f"{MINE}-two"} <= set(status.places) else None

        await poll(both, within_seconds=60, what="a keeper that carries for both")
        again = await provider(here).attach(f"{MINE}-one", epoch=1, token=f"t-{MINE}-one")
        assert b"good" in await fetch(await again.machine(), hosts[0].join(["http://", "/"]))
        await again.aclose()


async def test_there_is_one_however_many_ask_at_once(here: World, served: Web) -> None:
    async with relayed(here) as _:
        reach = {"unix": str(here.state / f"sandboxes/{MINE}-relayed/helper.sock")}
        os.kill(await keeper_pid(here), signal.SIGKILL)
        relays = [Carried(f"{MINE}-relayed", reach, (ToHost(18000, served.port),))] * 12
        await asyncio.gather(*(carry(here.state, carried, limits=LIMITS) for carried in relays))
        assert len(keepers(here)) == 1


async def test_it_goes_when_there_is_nothing_to_carry_and_leaves_nothing(here: World, served: Web) -> None:
    async with allowed(here, [f"{GOOD}:{served.port}"]):
        pid = await keeper_pid(here)
    await keeper_gone(here)
    await until_dead(pid)
    assert not list((here.state / "keeper/places").iterdir())
    assert (await installed_status(here.state)).pid is None


async def test_a_place_that_ends_by_itself_is_carried_for_no_more(here: World, served: Web) -> None:
    made = await provider(here).create(replace(spec(f"{MINE}-short"), network=listing(f"{GOOD}:{served.port}")))
    await (await made.machine()).set_ttl(0.1)
    await made.aclose()
    await keeper_gone(here)
    assert not list((here.state / "keeper/places").iterdir())
    await provider(here).destroy(f"{MINE}-short")


async def test_a_keeper_whose_state_folder_was_removed_goes(here: World, served: Web) -> None:
    async with allowed(here, [f"{GOOD}:{served.port}"]) as (sandbox, _):
        await sandbox.aclose()
        pid = await keeper_pid(here)
        (here.state / "keeper").rename(here.state / "elsewhere")
        await until_dead(pid)


async def test_what_is_carried_until_a_moment_is_carried_no_longer(here: World, served: Web) -> None:
    async with relayed(here) as place:
        reach = {"unix": str(here.state / f"sandboxes/{MINE}-relayed/helper.sock")}
        until = boot_seconds() + 3.0
        await carry(here.state, Carried(f"{MINE}-relayed", reach, (ToHost(18765, served.port),), expires=until), limits=LIMITS)

        async def over() -> bool | None:
            return None if f"{MINE}-relayed" in (await installed_status(here.state)).places else True

        await poll(over, within_seconds=60, what="the relay's end")
        assert boot_seconds() >= until
        assert b"Failed to connect" in await fetch(place, "http://127.0.0.1:18765/")


async def test_a_place_that_is_gone_cannot_be_carried_for(here: World) -> None:
    with pytest.raises(SandboxUnavailableError, match="no-such"):
        await carry(here.state, Carried("no-such", {"unix": str(here.state / "nowhere")}, (ToHost(1, 1),)), limits=LIMITS)
    assert not list((here.state / "keeper/places").iterdir())


async def test_removing_the_last_place_starts_no_keeper(here: World) -> None:
    assert not await drop(here.state, "local-never")
    Records(here.state).write(Carried("local-old", {"unix": "/nowhere"}))
    assert await drop(here.state, "local-old")
    assert (await installed_status(here.state)).pid is None


async def test_records_of_an_earlier_boot_are_found_and_removed(here: World) -> None:
    records = Records(here.state)
    records.write(Carried("local-old", {"unix": "/nowhere"}, boot="another"))
    records.write(Carried("local-late", {"unix": "/nowhere"}, expires=1.0))
    records.write(Carried("local-new", {"unix": "/nowhere"}))
    assert stale_records(here.state, remove=False) == ("local-late", "local-old")
    assert stale_records(here.state, remove=True) == ("local-late", "local-old")
    assert [*records.places()] == ["local-new"]


async def test_a_damaged_record_is_nobodys(here: World) -> None:
    records = Records(here.state)
    records.make()
    odd = '{"place": "a", "reach": {}, "relays": [{"kind": "x"}], "expires": null, "boot": ""}'
    for number, text in enumerate(["", "{", "[]", '{"place": 1}', odd]):
        (here.state / f"keeper/places/bad{number}").write_text(text)
        assert records.read(f"bad{number}") is None


# What it carries


async def test_a_listener_of_this_machine_is_reached_on_a_port_of_the_place_and_nothing_else_is(here: World, served: Web) -> None:
    async with relayed(here, ToHost(18765, served.port)) as place:
        assert b"SECRET GET /x" in await fetch(place, "http://127.0.0.1:18765/x")
        assert b"Failed to connect" in await fetch(place, f"http://127.0.0.1:{served.port}/")


async def test_a_relay_to_where_nobody_listens_ends_its_connections_and_works_when_somebody_does(here: World) -> None:
    with closing(socket.socket()) as later:
        later.bind(("127.0.0.1", 0))
        async with relayed(here, ToHost(18765, later.getsockname()[1])) as place:
            assert b"curl: (" in await fetch(place, "http://127.0.0.1:18765/")
            later.listen()
            threading.Thread(target=_serve_once, args=(later,), daemon=True).start()
            assert await fetch(place, "http://127.0.0.1:18765/", "--http0.9") == b"once"


def _serve_once(listener: socket.socket) -> None:
    link, _ = listener.accept()
    with link:
        link.recv(65536)
        link.sendall(b"once")


async def test_a_port_of_this_machines_loopback_leads_to_a_program_of_the_place(here: World) -> None:
    port = next(filter(is_free, candidates()))
    async with relayed(here, FromHost(port, 8000)) as place:
        await place.run(Command(["sh", "-c", "mkdir s; echo from inside > s/x; cd s; python3 -m http.server 8000 --bind 127.0.0.1 & echo"]))

        async def answered() -> bytes | None:
            return await asyncio.to_thread(_get, port)

        assert await poll(answered, within_seconds=60, what="the place's server") == b"from inside\n"
        for number in range(3):  # also after a change, and through another keeper
            reach = {"unix": str(here.state / f"sandboxes/{MINE}-relayed/helper.sock")}
            if number == 1:
                os.kill(await keeper_pid(here), signal.SIGKILL)
            await carry(here.state, Carried(f"{MINE}-relayed", reach, (FromHost(port, 8000), ToHost(18000 + number, 1))), limits=LIMITS)
            assert await asyncio.to_thread(_get, port) == b"from inside\n"
        with socket.create_connection(("127.0.0.1", port)) as link:
            link.settimeout(60)
            assert ("127.0.0.1", port) == link.getpeername()


def _get(port: int) -> bytes | None:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/x", timeout=60) as answer:
            return bytes(answer.read())
    except OSError:
        return None


@pytest.mark.parametrize("mode", ["allowlist", "none"])
async def test_po07_a_place_that_is_cut_off_publishes_its_ports_and_keeps_them_when_it_is_reopened(
    here: World, served: Web, mode: str
) -> None:
    maker = provider(here)
    policy = listing(f"{GOOD}:{served.port}") if mode == "allowlist" else NetworkPolicy(mode=NetworkMode.NONE)
    made = await maker.create(spec("local-ports", network=policy, ports=(8000, 8000, 9000)))
    port = made.published.host_ports[8000]
    place = await made.machine()
    await place.run(Command(["sh", "-c", "mkdir s; echo published > s/x; cd s; python3 -m http.server 8000 & echo"]))

    async def answered() -> bytes | None:
        return await asyncio.to_thread(_get, port)

    assert await poll(answered, within_seconds=60, what="the place's server") == b"published\n"
    await made.aclose()
    again = await maker.attach("local-ports", epoch=2, token="t-local-ports")
    assert again.published == made.published
    assert set(again.published.host_ports) == {8000, 9000}
    assert await asyncio.to_thread(_get, port) == b"published\n"
    await again.aclose()
    await maker.destroy("local-ports")
    assert await asyncio.to_thread(_get, port) is None


async def test_a_port_of_this_machine_that_is_taken_is_told_as_such(here: World, served: Web) -> None:
    async with relayed(here):
        reach = {"unix": str(here.state / f"sandboxes/{MINE}-relayed/helper.sock")}
        with closing(socket.socket()) as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            with pytest.raises(PortTakenError):
                await carry(here.state, Carried(f"{MINE}-relayed", reach, (FromHost(taken.getsockname()[1], 8000),)), limits=LIMITS)


async def test_relays_of_a_place_can_be_changed(here: World, served: Web) -> None:
    async with relayed(here, ToHost(18001, served.port)) as place:
        reach = {"unix": str(here.state / f"sandboxes/{MINE}-relayed/helper.sock")}
        await carry(here.state, Carried(f"{MINE}-relayed", reach, (ToHost(18002, served.port),)), limits=LIMITS)
        assert b"SECRET" in await fetch(place, "http://127.0.0.1:18002/")
        await carry(here.state, Carried(f"{MINE}-relayed", reach, (ToHost(18001, served.port), ToHost(18002, served.port))), limits=LIMITS)
        assert b"SECRET" in await fetch(place, "http://127.0.0.1:18001/")


async def test_a_taken_port_of_the_place_is_told(here: World, served: Web) -> None:
    async with relayed(here) as place:
        listening = await place.start(Command(["python3", "-m", "http.server", "18765", "--bind", "127.0.0.1"]))

        async def up() -> bool | None:
            return True if b"Failed" not in await fetch(place, "http://127.0.0.1:18765/") else None

        await poll(up, within_seconds=60, what="the place's own server")
        reach = {"unix": str(here.state / f"sandboxes/{MINE}-relayed/helper.sock")}
        with pytest.raises(SandboxUnavailableError, match="18765"):
            await carry(here.state, Carried(f"{MINE}-relayed", reach, (ToHost(18765, served.port),)), limits=LIMITS)
        await listening.kill()


async def test_big_transfers_both_ways_take_constant_memory(here: World, served: Web) -> None:
    url = f"http://{GOOD}:{served.port}/"
    with closing(socket.socket()) as flood:
        flood.bind((GOOD, 0))
        flood.listen()
        threading.Thread(target=_flood, args=(flood, 96), daemon=True).start()
        async with allowed(here, [f"{GOOD}:{served.port}", f"{GOOD}:{flood.getsockname()[1]}"]) as (_, place):
            await fetch(place, url)
            pid = await keeper_pid(here)
            before = peak(pid)
            down = await place.run(
                Command(["sh", "-c", f"curl -sS --proxytunnel --http0.9 http://{GOOD}:{flood.getsockname()[1]}/ | wc -c"])
            )
            assert down.stdout.split() == [str(96 << 20).encode()]
            up = await place.run(Command(["sh", "-c", f"head -c {64 << 20} /dev/zero > big; curl -sS -T big -H 'Expect:' {url}up"]))
            assert up.stdout == f"good PUT /up {64 << 20}".encode()
            assert peak(pid) - before < 24 << 20


def peak(pid: int) -> int:
    """The most memory that a process ever had, in bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def _flood(listener: socket.socket, megabytes: int) -> None:
    link, _ = listener.accept()
    with link:
        link.recv(65536)
        for _ in range(megabytes):
            link.sendall(bytes(1 << 20))


async def test_more_connections_than_a_place_may_have_are_ended_and_told(here: World) -> None:
    told: list[dict[str, object]] = []
    script = """
import socket
held = [socket.create_connection(("127.0.0.1", 61080), 20) for _ in range(4)]
for link in held: link.sendall(b"C")
ended = 0
for _ in range(2):
    try: ended += socket.create_connection(("127.0.0.1", 61080), 20).recv(1) == b""
    except ConnectionResetError: ended += 1
print(ended)
"""
    async with allowed(here, [GOOD], limits=replace(LIMITS, keeper_connections=4)) as (sandbox, place):
        sandbox.report_to(told.append)
        done = await place.run(Command(["python3", "-c", script]))
        assert done.stdout == b"2\n", done.stderr

        async def heard() -> bool | None:
            return True if any("4 connections" in str(entry["why"]) for entry in told) else None

        await poll(heard, within_seconds=60, what="the refusal")


async def test_whatever_an_origin_answers_ends_its_own_connection_and_no_other(here: World, served: Web) -> None:
    """Answers that are no HTTP, or contradict themselves, and one that breaks off."""
    answers = [
        b"",
        b"\0\1\2\r\n\r\n",
        b"SSH-2.0-OpenSSH_9\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\nContent-Length: 20\r\n\r\n",
        b"HTTP/1.1 204 No\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nx",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort",
        b"HTTP/1.1 101 Up\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nx",
        b"HTTP/1.1 999 \xff\xfe\r\nX: \xff\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000,
    ]
    with closing(socket.socket()) as odd:
        odd.bind((GOOD, 0))
        odd.listen()
        threading.Thread(target=_answer_each, args=(odd, answers), daemon=True).start()
        async with allowed(here, [f"{GOOD}:{served.port}", f"{GOOD}:{odd.getsockname()[1]}"]) as (_, place):
            held = await place.start(Command(["sh", "-c", f"(sleep 2) | curl -sS -T - http://{GOOD}:{served.port}/slow"]))
            for _ in answers:
                await fetch(place, f"http://{GOOD}:{odd.getsockname()[1]}/", "-m", "5")
            assert await fetch(place, f"http://{GOOD}:{served.port}/after") == b"good GET /after 0"
            await held.kill()
        assert "Traceback" not in (here.state / "keeper/keeper.log").read_text()


def _answer_each(listener: socket.socket, answers: Sequence[bytes]) -> None:
    for answer in answers:
        link, _ = listener.accept()
        with link:
            link.recv(65536)
            link.sendall(answer)


async def test_the_way_out_is_the_same_with_bubblewrap(here: World, served: Web) -> None:
    environ = {**os.environ, "HOME": str(here.home), "AGENT_ENV_LOCAL_SANDBOX_DIR": str(here.work)}
    maker = LocalProvider(here.state, limits=LIMITS, options={"confiner": "bwrap", "allow_private": ["127.5.0.0/16"]}, environ=environ)
    if maker.machine.bwrap is None:
        pytest.skip("agentenv-capability-missing: bubblewrap")
    made = await maker.create(spec("local-wrapped", network=listing(f"{GOOD}:{served.port}")))
    assert b"good" in await fetch(await made.machine(), f"http://{GOOD}:{served.port}/")
    assert b"refused" in await fetch(await made.machine(), "http://evil.test/")
    await made.aclose()
    await maker.destroy("local-wrapped")


async def test_a_client_that_says_nothing_is_let_go(here: World) -> None:
    script = 'import socket; link = socket.create_connection(("127.0.0.1", 61080), 20); print(link.recv(1))'
    async with allowed(here, [GOOD], limits=replace(LIMITS, keeper_head_seconds=0.3)) as (_, place):
        done = await place.run(Command(["python3", "-c", script]))
        assert b"ConnectionReset" in done.stderr or done.stdout == b"b''\n"


async def test_a_connection_on_which_nothing_moves_is_ended(here: World) -> None:
    with closing(socket.socket()) as silent:
        silent.bind((GOOD, 0))
        silent.listen()
        port = silent.getsockname()[1]
        async with allowed(here, [f"{GOOD}:{port}"], limits=replace(LIMITS, keeper_idle_stream_seconds=0.5)) as (_, place):
            text = await fetch(place, f"http://{GOOD}:{port}/", "--proxytunnel")
            assert b"curl: (" in text
            assert b"timed out" not in text


async def test_a_place_cannot_flood_what_is_told_of_it(here: World) -> None:
    told: list[dict[str, object]] = []
    script = """
import socket
for number in range(150):
    with socket.create_connection(("127.0.0.1", 61080), 20) as link:
        link.sendall(b"CONNECT n%d.test:443 HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n" % number)
        assert b"403" in link.recv(65536)
"""
    async with allowed(here, [GOOD]) as (sandbox, place):
        sandbox.report_to(told.append)
        done = await place.run(Command(["python3", "-c", script]))
        assert done.ok, done.stderr

        async def all_told() -> bool | None:
            return True if len(told) >= 100 else None

        await poll(all_told, within_seconds=60, what="what was refused")
        assert (await installed_status(here.state)).places[f"{MINE}-allowed"]["refused"] == 150
    assert len(told) == 100


async def test_an_entry_that_can_never_match_is_refused_before_anything_is_made(here: World) -> None:
    maker = provider(here)
    wanted = spec("local-odd", network=listing("https://example.com", "ok.test"))
    problems = maker.problems(wanted, await maker.capabilities())
    assert len(problems) == 1
    assert "without scheme" in problems[0]
    assert isinstance(wanted, SandboxSpec)
