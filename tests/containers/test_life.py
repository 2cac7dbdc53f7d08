"""Making and removing containers: whatever the image, whoever is killed or takes a port meanwhile, nothing is left that nobody owns."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from agent_env.containers import (
    ContainerPlace,
    Engine,
    EngineEndpoint,
    Mount,
    Privileges,
    attach,
    deploy,
    labelled,
    named,
    remove_all,
    remove_container,
    remove_old_helpers,
)
from agent_env.containers.objects import inspect
from agent_env.containers.volumes import helper_volume, remove_cut_installs
from agent_env.errors import (
    ContainerNotRunningError,
    EngineFailedError,
    ImageNotFoundError,
    InfrastructureError,
    LaunchError,
    PortTakenError,
    UsageError,
)
from agent_env.places import Command, Ending, Entry, Upload
from agent_env.waiting import poll
from tests.busy import within
from tests.container_engine import NEAR_AND_FAR, Bench, archive_of, bench, busybox_root, ensure
from tests.processes import forked

CANARY = "canary-" + secrets.token_hex(6)


def sh(text: str, **given: Any) -> Command:
    return Command(["sh", "-c", text], **given)


async def raw(engine: Engine, path: str, method: str = "GET", **given: Any) -> Any:
    async with engine.asking(f"{method} {path}") as client:
        return await client._query_json(path, method=method, **given)


async def until_it_ends(place: ContainerPlace) -> None:
    while True:
        await place.run(Command(["true"]))


# images of every kind


async def test_a16_a_scratch_image_is_a_place_for_files_and_probes(docker: EngineEndpoint) -> None:
    image = ensure(docker, "agentenv-test/scratch:1", lambda: archive_of({"data": b"only this"}, modes={"data": 0o600}))
    async with bench(docker, image) as here:
        place = await here.deploy(argv=None)
        assert await place.read(PurePosixPath("/data")) == b"only this"
        await place.put([Upload(PurePosixPath("/made/here"), b"x")])
        entry = (await place.stat([PurePosixPath("/made/here")], digest=True))[PurePosixPath("/made/here")]
        assert isinstance(entry, Entry)
        with pytest.raises(LaunchError, match="sh could not be started"):
            await place.run(sh("true"))


async def test_fi03_a_read_only_root_is_refused_by_the_path_and_its_writable_mounts_are_not(docker: EngineEndpoint, busybox: str) -> None:
    async with bench(docker, busybox) as here:
        place = await here.deploy(read_only=True, temporary={"/tmp": 1 << 20})
        assert not (await place.run(sh("echo x > /root/x"))).ok
        await place.put([Upload(PurePosixPath("/tmp/in/file"), b"fi-03")])
        assert (await place.run(sh("cat /tmp/in/file"))).stdout == b"fi-03"
        with pytest.raises(Exception, match=r"/root/y.*(EROFS|read-only)"):
            await place.put([Upload(PurePosixPath("/root/y"), b"")])


async def test_a05_the_images_user_runs_commands_and_root_reads_files(docker: EngineEndpoint, busybox: str) -> None:
    async with bench(docker, busybox) as here:
        place = await here.deploy(user="worker", argv=("sh", "-c", "id -u; echo out > /dev/stdout; exec sleep 1000"))
        await place.put([Upload(PurePosixPath("/secret"), b"root's", mode=0o600)], owner="0:0")
        assert (await place.run(sh("id -u; echo $HOME; touch $HOME/x && cat /secret"))).stdout == b"1001\n/home/worker\n"
        assert (await place.run(sh("id -u; cat /secret", user="root"))).stdout == b"0\nroot's"
        assert await place.read(PurePosixPath("/secret")) == b"root's"
        async with here.engine.asking("log") as client:
            log = await client.containers.container(place.id).log(stdout=True)
        assert "".join(log) == "1001\nout\n"


@pytest.mark.parametrize("user", ["4321:4321", "nobody"])
async def test_us01_home_is_a_writable_folder_for_any_user(user: str, docker: EngineEndpoint, busybox: str) -> None:
    async with bench(docker, busybox) as here:
        place = await here.deploy()
        assert (await place.run(sh("touch $HOME/x && [ $HOME != /root ]", user=user))).ok


async def test_an_images_volumes_are_named_labelled_and_removed(docker: EngineEndpoint) -> None:
    files = {**busybox_root(), "data": None, "data/kept": b"from the image"}
    image = ensure(docker, "agentenv-test/volumes:1", lambda: archive_of(files), ["VOLUME /data /other", 'CMD ["sleep", "100"]'])
    async with bench(docker, image) as here:
        before = {each["Name"] for each in (await raw(here.engine, "volumes"))["Volumes"] or []}
        place = await here.deploy(argv=None)
        assert (await place.run(sh("cat /data/kept; ls -d /other"))).stdout == b"from the image/other\n"
        made = {each["Name"] for each in (await raw(here.engine, "volumes"))["Volumes"] or []} - before
        listed = {each.name for each in await labelled(here.engine, here.labels) if each.kind == "volume"}
        assert listed == {f"{place.name}-volume-0", f"{place.name}-volume-1"}
        assert listed <= made
        await place.aclose()
        removed = await remove_all(here.engine, here.labels)
        assert {each.kind for each in removed.gone} == {"container", "volume"}
        assert await labelled(here.engine, here.labels) == []


async def test_im06_an_image_of_another_architecture_is_refused_by_name(docker: EngineEndpoint) -> None:
    other = "arm64"
    foreign = b"\x7fELF\x02\x01\x01" + bytes(9) + (2).to_bytes(2, "little") + (243).to_bytes(2, "little") + bytes(44)
    image = ensure(docker, "agentenv-test/foreign:1", lambda: archive_of({"run": foreign}), ['CMD ["/run"]'])
    async with bench(docker, image) as here:
        with pytest.raises(LaunchError, match="exec format error"):
            await here.deploy(argv=None)
        assert await labelled(here.engine, here.labels) == []
    assert other


async def test_what_cannot_be_made_is_said_before_and_leaves_nothing(docker: EngineEndpoint, busybox: str) -> None:
    async with bench(docker, busybox) as here:
        with pytest.raises(ImageNotFoundError):
            await here.deploy(image="agentenv-test/absent:1")
        with pytest.raises(UsageError, match=r"label agentenv\.home is missing"):
            await here.deploy(labels={"agentenv.home": ""})
        with pytest.raises(UsageError, match="no name for a variable"):
            await here.deploy(env={"A=B": "c"})
        with pytest.raises(LaunchError, match="absent could not be started"):
            await here.deploy(argv=("absent",))
        with pytest.raises(LaunchError):
            await here.deploy(user="stranger")
        assert await labelled(here.engine, here.labels) == []


async def test_a_container_that_ends_before_it_was_told_anything_says_so_whatever_it_publishes(
    docker: EngineEndpoint, busybox: str
) -> None:
    async with bench(docker, busybox) as here:
        for ports in ([], [8000]):
            with pytest.raises(ContainerNotRunningError, match=r"exited with code(.|\n)*[Aa]rgument list too long"):
                await here.deploy(network="bridge", ports=ports, env={"TOO_LONG": "x" * 200_000})
        assert await labelled(here.engine, here.labels) == []


async def test_a_share_of_a_core_too_small_for_the_kernel_is_its_smallest(docker: EngineEndpoint, busybox: str) -> None:
    async with bench(docker, busybox) as here:
        place = await here.deploy(argv=("sleep", "1000"), cpu=0.0001)
        assert (await inspect(here.engine, place.id))["HostConfig"]["NanoCpus"] == 10_000_000


async def test_lc03_a_command_that_ends_at_once_ends_the_container_with_its_code(docker: EngineEndpoint, busybox: str) -> None:
    async with bench(docker, busybox) as here:
        done = await here.deploy(argv=("true",))
        with pytest.raises(ContainerNotRunningError, match="exited with code 0") as told:
            await until_it_ends(done)
        assert "take an image whose command stays" in str(told.value.hint)
        place = await here.deploy(argv=("sh", "-c", "echo boom >&2; exit 3"))
        with pytest.raises(ContainerNotRunningError, match=r"exited with code 3(.|\n)*boom"):
            await until_it_ends(place)
        held = await here.deploy(argv=("sh", "-c", "exit 3"), hold=True)
        assert (await held.run(Command(["true"]))).ok


# the helper


async def test_the_helpers_volume_is_filled_once_by_many_and_after_a_kill(docker: EngineEndpoint, busybox: str) -> None:
    async with bench(docker, busybox) as here:
        name = helper_volume((await here.engine.info()).architecture)
        private = f"{name}-{secrets.token_hex(4)}"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("agent_env.containers.volumes.helper_volume", lambda _: private)
            engines = [Engine(docker) for _ in range(3)]
            places: list[ContainerPlace] = []
            try:
                places = await asyncio.gather(*(deploy(engine, here.spec()) for engine in engines for _ in range(2)))
                assert all(done.ok for done in await asyncio.gather(*(place.run(Command(["true"])) for place in places)))
                listing = await places[0].run(sh("ls -A /.agentenv; touch /.agentenv/x"))
                assert listing.stdout == b"helper\n"
                assert not listing.ok
            finally:
                await asyncio.gather(*(place.aclose() for place in places))
                await remove_all(here.engine, here.labels)
                await asyncio.gather(*(engine.aclose() for engine in engines))
                await raw(here.engine, f"volumes/{private}", "DELETE")


async def test_a_restarted_container_waits_and_is_told_again_who_it_is(docker: EngineEndpoint, busybox: str) -> None:
    async with bench(docker, busybox) as here:
        write = "echo $KEY > /kept.new; mv /kept.new /kept; exec sleep 1000"
        place = await here.deploy(argv=("sh", "-c", write), secrets={"KEY": CANARY}, env={"A": "1"})
        await raw(here.engine, f"containers/{place.id}/restart", "POST", params={"t": "0"})
        again = await attach(here.engine, place.id, token=here.token, epoch=2, secrets={"KEY": CANARY})
        here.places.append(again)
        done = await again.run(sh("until [ -s /kept ]; do sleep 0.02; done; echo $A; cat /kept; id -u"))
        assert done.stdout == f"1\n{CANARY}\n0\n".encode()

        async def alone() -> bool | None:
            return [entry.argv0 for entry in await again.ledger() if entry.running] == ["sh"] or None

        await poll(alone, within_seconds=60, what="the end of the command that looked")


async def test_nobody_inside_can_configure_stop_or_look_into_the_helper(docker: EngineEndpoint, busybox: str) -> None:
    async with bench(docker, busybox) as here:
        place = await here.deploy(secrets={"KEY": CANARY})
        done = await place.run(
            sh(
                "kill -9 1; kill -TERM 1; cat /proc/1/environ /proc/1/mem /proc/1/maps;"
                "for p in $(pidof helper); do cat /proc/$p/environ; done;"
                "grep -h CapBnd /proc/self/status; mknod /tmp/x c 1 3 && echo made; echo end",
                env={"KEY": "mine"},
            )
        )
        assert CANARY.encode() not in done.stdout + done.stderr
        assert b"made" not in done.stdout
        assert done.stdout.endswith(b"end\n")
        assert int(done.stdout.split(b"CapBnd:")[1].split()[0], 16) & (1 << 19 | 1 << 27 | 1 << 13) == 0


async def test_the_ttl_ends_the_container_by_itself_told_or_not(docker: EngineEndpoint, busybox: str) -> None:
    async with bench(docker, busybox) as here:
        seconds = 1.0
        longer = None
        while longer is None:  # as many as this machine needs, however busy, to make one and to tell it another time
            try:
                place, longer = await here.deploy(ttl_seconds=seconds), await here.deploy(ttl_seconds=seconds)
                await longer.set_ttl(100.0)
            except InfrastructureError:
                longer, seconds = None, 4 * seconds
        assert (await raw(here.engine, f"containers/{place.id}/wait", "POST"))["StatusCode"] == 0
        assert (await longer.run(sh(f"sleep {seconds + 0.5}; echo lives"))).stdout == b"lives\n"


async def test_lc05_an_engine_stops_a_container_by_its_own_signal_at_once(docker: EngineEndpoint, busybox: str) -> None:
    async with bench(docker, busybox) as here:
        asked = await here.deploy(argv=("sh", "-c", "trap 'exit 5' TERM; while :; do sleep 0.05; done"))
        plain = await here.deploy(argv=("sleep", "1000"))
        idle = await here.deploy(argv=())
        async with asyncio.timeout(90):  # the engine kills after a hundred, with a signal of its own
            await asyncio.gather(
                *(raw(here.engine, f"containers/{each.id}/stop", "POST", params={"t": "100"}) for each in (asked, plain, idle))
            )
        states = [(await inspect(here.engine, each.id))["State"]["ExitCode"] for each in (asked, plain, idle)]
        assert states == [5, 143, 0]


# limits


async def test_limits_privileges_labels_and_addresses_are_the_engines(docker: EngineEndpoint, busybox: str) -> None:
    async with bench(docker, busybox) as here:
        place = await here.deploy(cpu=0.5, memory_bytes=64 << 20, processes=100, network="bridge", ports=[8000])
        said = await inspect(here.engine, place.id)
        host = said["HostConfig"]
        assert (host["NanoCpus"], host["Memory"], host["PidsLimit"]) == (500_000_000, 64 << 20, 164)
        assert host["SecurityOpt"] == ["no-new-privileges"]
        assert host["CapDrop"] == ["ALL"]
        assert "NET_RAW" not in " ".join(host["CapAdd"])
        assert said["Config"]["Labels"]["agentenv.home"] == here.home
        (bound,) = said["NetworkSettings"]["Ports"]["8000/tcp"]
        assert bound == {"HostIp": "127.0.0.1", "HostPort": str(place.ports[8000])}
        assert 20000 <= place.ports[8000] <= 29999
        done = await place.run(sh("grep host.docker.internal /etc/hosts; x=$(head -c 100000000 /dev/zero | tr '\\0' x); echo end"))
        assert b"host.docker.internal" in done.stdout
        assert done.ending is not Ending.LOST
        assert b"end" not in done.stdout or done.stderr


async def test_privileges_are_only_what_was_granted(docker: EngineEndpoint, busybox: str) -> None:
    async with bench(docker, busybox) as here:
        try:
            place = await here.deploy(privileges=Privileges(privileged=True))
        except EngineFailedError as error:
            pytest.skip(f"agentenv-capability-missing: privileged_containers ({error})")
        assert (await place.run(sh("mknod /tmp/null c 1 3 && mount -t tmpfs none /root"))).ok
        plain = await here.deploy(mounts=[Mount("/host", "/usr", kind="bind", read_only=True)])
        assert not (await plain.run(sh("mount -t tmpfs none /root"))).ok
        assert (await plain.run(sh("ls /host/bin >/dev/null && ! touch /host/x"))).ok


# ports


async def test_d04_a_port_taken_between_choice_and_start_is_replaced_silently(
    docker: EngineEndpoint, busybox: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bench(docker, busybox) as here:
        first = await here.deploy(network="bridge", ports=[80])
        taken = first.ports[80]
        monkeypatch.setattr("agent_env.containers.container.candidates", lambda: iter([taken, taken + 1 if taken < 29999 else 20000]))
        monkeypatch.setattr("agent_env.containers.container.is_free", lambda _: True)
        second = await here.deploy(network="bridge", ports=[80])
        assert second.ports[80] != taken
        with pytest.raises(PortTakenError):
            await here.deploy(network="bridge", host_ports={80: taken})
        listed = [each for each in await labelled(here.engine, here.labels) if each.kind == "container"]
        assert {each.id for each in listed} == {first.id, second.id}
        assert not any(each.half_made for each in listed)


async def test_a_published_port_reaches_the_container_and_only_from_loopback(docker: EngineEndpoint, busybox: str) -> None:
    async with bench(docker, busybox) as here:
        if not (await here.engine.info()).on_this_machine:
            pytest.skip("agentenv-capability-missing: engine_on_this_machine")
        place = await here.deploy(network="bridge", ports=[8000], argv=("nc", "-ll", "-p", "8000", "-e", "echo", "hello"))

        async def answer() -> bytes | None:  # po-02: an engine takes the connection before the container listens
            reader, writer = await asyncio.open_connection("127.0.0.1", place.ports[8000])
            try:
                return await reader.read() or None
            except ConnectionError:
                return None
            finally:
                writer.close()

        assert await poll(answer, within_seconds=60, what="the server") == b"hello\n"


# secrets


@NEAR_AND_FAR
async def test_mustshow4_secrets_are_in_no_argument_variable_inspection_or_log(far: bool, docker: EngineEndpoint, busybox: str) -> None:
    async with bench(docker, busybox, far=far) as here:
        place = await here.deploy(secrets={"KEY": CANARY}, argv=("sh", "-c", '[ -n "$KEY" ] && echo started; exec sleep 1000'))
        assert (await place.run(sh("echo $KEY $MORE", secrets={"MORE": f"{CANARY}-2"}))).stdout.decode() == f"{CANARY} {CANARY}-2\n"
        async with here.engine.asking("looking") as client:
            log = "".join(await client.containers.container(place.id).log(stdout=True, stderr=True))
        assert log == "started\n"
        everything = [await inspect(here.engine, place.id), await raw(here.engine, f"images/{busybox}/history"), log]
        everything += [await raw(here.engine, f"containers/{place.id}/top"), await raw(here.engine, f"containers/{place.id}/changes")]
        execs = everything[0]["ExecIDs"] or []
        everything += [await raw(here.engine, f"exec/{each}/json") for each in execs]
        assert len(execs) <= 1
        assert CANARY not in json.dumps(everything)
        assert here.token not in json.dumps(everything)
        if not far:
            assert CANARY.encode() not in await asyncio.to_thread(every_argument)


def every_argument() -> bytes:
    found = b""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            found += path.read_bytes()
    return found


# removal


async def test_lc06_many_removers_all_succeed_and_others_objects_stay(docker: EngineEndpoint, busybox: str) -> None:
    async with bench(docker, busybox) as here, bench(docker, busybox) as other:
        place, neighbour = await here.deploy(), await other.deploy()
        assert any(await asyncio.gather(*(remove_container(here.engine, place.id) for _ in range(6))))
        assert not await remove_container(here.engine, place.id)
        assert (await remove_all(here.engine, here.labels)).left == {}
        assert (await neighbour.run(Command(["true"]))).ok
        with pytest.raises(ValueError, match="labels"):
            await remove_all(here.engine, {})


async def test_f01_a_maker_killed_at_any_moment_leaves_only_what_its_labels_find(docker: EngineEndpoint, busybox: str) -> None:
    async with bench(docker, busybox) as here:
        for delay in (0.0, 0.02, 0.1, 0.25):
            pid = forked(lambda: asyncio.run(asyncio.wait_for(_forever(docker, here), 60)))
            await asyncio.sleep(delay)
            os.kill(pid, signal.SIGKILL)
            await asyncio.to_thread(os.waitpid, pid, 0)
        quiet = 0

        async def nothing_comes() -> bool | None:
            """What was asked of the engine before a kill is made all the same, a moment later."""
            nonlocal quiet
            found = await labelled(here.engine, here.labels)
            await remove_all(here.engine, here.labels)
            quiet = 0 if found else quiet + 1
            return quiet == 4 or None

        await poll(nothing_comes, within_seconds=60, what="that nothing is left")


async def _forever(docker: EngineEndpoint, here: Bench) -> None:
    async with Engine(docker) as engine:
        while True:
            await deploy(engine, here.spec())


async def again_and_again(here: Bench) -> None:
    while True:
        await here.deploy()


async def test_a_cancelled_deployment_leaves_nothing(docker: EngineEndpoint, busybox: str) -> None:
    async with bench(docker, busybox) as here:
        for delay in (0.001, 0.01, 0.05, 0.15):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(again_and_again(here), delay)
            await asyncio.gather(*(remove_container(here.engine, place.id) for place in here.places))
            assert [each for each in await labelled(here.engine, here.labels) if each.kind == "container"] == []
            await asyncio.gather(*(place.aclose() for place in here.places))
            here.places.clear()


async def test_thirteen_at_once_are_all_made_each_its_own(docker: EngineEndpoint, busybox: str) -> None:
    async with bench(docker, busybox) as here:
        places = await asyncio.gather(*(here.deploy(network="bridge", ports=[80]) for _ in range(13)))
        names = await asyncio.gather(*(place.run(Command(["hostname"])) for place in places))
        assert len({name.stdout for name in names}) == 13
        assert len({place.ports[80] for place in places}) == 13


async def test_ex17_no_zombies_pile_up(docker: EngineEndpoint, busybox: str) -> None:
    async with bench(docker, busybox) as here:
        place = await here.deploy()
        await asyncio.gather(*(place.run(sh("sh -c 'sleep 0.05 &'")) for _ in range(50)))

        async def all_reaped() -> bool | None:
            """All but the container's own have ended, and none is still to be waited for: one may end just when it is looked at."""
            done = await place.run(sh("pidof sleep | wc -w; cat /proc/[0-9]*/stat | grep -c ') Z ' || true"))
            return done.stdout.split() == [b"1", b"0"] or None

        await poll(all_reaped, within_seconds=within(20), what="the reaping of all")


async def test_a10_a_name_is_resolved_only_with_our_labels(docker: EngineEndpoint, busybox: str) -> None:
    async with bench(docker, busybox) as here, bench(docker, busybox) as other:
        place, decoy = await here.deploy(), await other.deploy()
        mine = {"agentenv.sandbox": place.labels["agentenv.sandbox"]}
        found = await named(here.engine, place.name, mine)
        assert found is not None
        assert (found.id, found.state) == (place.id, "running")
        assert await named(here.engine, decoy.name, mine) is None
        assert await named(here.engine, place.name[:-1], mine) is None
        with pytest.raises(ValueError, match="labels"):
            await named(here.engine, place.name, {})


async def test_volumes_of_older_helpers_go_when_nobody_uses_them(docker: EngineEndpoint, busybox: str) -> None:
    async with bench(docker, busybox) as here:
        old, used = f"agentenv-helper-old-{here.home}", f"agentenv-helper-used-{here.home}"
        for name in (old, used):
            await raw(here.engine, "volumes/create", "POST", data={"Name": name, "Labels": {"agentenv.helper": name, **here.labels}})
        place = await here.deploy(mounts=[Mount("/used", used)])
        assert used not in await remove_old_helpers(here.engine)
        volumes = {each["Name"] for each in (await raw(here.engine, "volumes"))["Volumes"]}
        assert (old in volumes, used in volumes) == (False, True)  # a collection of another test may have been the one that removed it
        assert (await place.run(Command(["true"]))).ok
        assert (await (await here.deploy()).run(Command(["true"]))).ok


async def test_f01_an_installer_of_the_helper_whose_maker_is_gone_is_removed_and_no_other(docker: EngineEndpoint, busybox: str) -> None:
    async with bench(docker, busybox) as here, bench(docker, busybox) as another:
        made = []
        for labels in ({**here.labels, "agentenv.role": "helper"}, {**another.labels, "agentenv.role": "helper"}, here.labels):
            made.append((await raw(here.engine, "containers/create", "POST", data={"Image": busybox, "Labels": labels}))["Id"])
        assert await remove_cut_installs(here.engine, here.home, before=0) == []
        assert await remove_cut_installs(here.engine, here.home, before=2**40) == made[:1]
        assert {each.id for home in (here, another) for each in await labelled(here.engine, home.labels)} == set(made[1:])
