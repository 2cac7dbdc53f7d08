"""Must-show 3: what a task may try, as root and as an ordinary user, with and without bubblewrap, and what it gets."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

from agent_env.clock import SystemClock
from agent_env.documents.network import NetworkMode, NetworkPolicy
from agent_env.errors import StorageError
from agent_env.places import Command, Completed, Ending
from agent_env.sandboxes import Level
from agent_env.sandboxes.confined.records import make_private
from tests.busy import within
from tests.sandboxes.people import MINE, SECRET, WAYS, World, act, open_tunnels, spec

# A script for `sh`; each must print `held` and nothing of the secret. Placeholders are of the machine outside.
ATTEMPTS = {
    "read the home of the user": "cat {home}/secret 2>&1; ls {home} 2>&1; ls -A /root /home; [ ! -e {home}/secret ] && echo held",
    "read an exported variable": "env; cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n'; echo held",
    "see another process": "cat /proc/[0-9]*/comm | grep -x sleep || echo held",
    "signal another process": "kill -9 {bystander} 2>/dev/null; echo held",
    "read the state folder": "ls {state} 2>&1; [ ! -e {state}/sandboxes ] && echo held",
    "write outside": "echo x > {home}/written 2>/dev/null; echo x > /usr/written 2>/dev/null || echo held",
    "leave through a relative path": "cat ../../../../../../../../..{home}/secret 2>/dev/null || echo held",
    "leave through a descriptor of pid 1": "ls /proc/1/root/ 2>/dev/null; cat /proc/1/cwd/{home}/secret 2>/dev/null || echo held",
    "leave through chroot": "chroot / true 2>/dev/null && echo chrooted || echo held",
    "mount": "mount -t tmpfs none /mnt 2>/dev/null && echo mounted || echo held",
    "unmount": "umount /usr 2>/dev/null && echo unmounted || echo held",
    "remount writable": "mount -o remount,rw,bind /usr 2>/dev/null && echo remounted || echo held",
    "make a user namespace": "unshare -Ur true 2>/dev/null && echo made || echo held",
    "enter the namespaces of pid 1": "nsenter -t 1 -m true 2>/dev/null && echo entered || echo held",
    "make a device": "mknod /tmp/disk b 254 0 2>/dev/null && echo made || echo held",
    "set the clock": "date -s 2001-01-01 >/dev/null 2>&1 && echo set || echo held",
    "set the host name": "hostname changed 2>/dev/null && echo set || echo held",
    "change the kernel": "echo 1 > /proc/sys/kernel/sysrq 2>/dev/null; echo b > /proc/sysrq-trigger 2>/dev/null || echo held",
    "read kernel memory": "head -c1 /proc/kcore 2>/dev/null | grep -q . && echo read || echo held",
    "gain through a set-id file": (
        "cp /bin/sh /tmp/s && chmod u+s /tmp/s; "
        "/tmp/s -p -c 'grep -E \"CapEff|CapPrm\" /proc/self/status' | grep -qv 0000000000000000 || echo held"
    ),
    "gain capabilities": "grep -E 'Cap(Inh|Prm|Eff|Bnd|Amb)' /proc/self/status | grep -vq 0000000000000000 || echo held",
    "gain new privileges": "grep -q 'NoNewPrivs:.1' /proc/self/status && grep -q 'Seccomp:.2' /proc/self/status && echo held",
    "kill pid 1": "kill -9 1; kill -TERM 1; kill -STOP 1; kill -INT 1; sleep 0.05; echo held",
    "let pid 1 wait": (
        "renice -n 19 -p 1 2>/dev/null && echo set; ionice -c 3 -p 1 2>/dev/null && echo set; chrt -i -p 0 1 2>/dev/null && echo set; "
        "taskset -pc 0 1 >/dev/null 2>&1 && echo set; renice -n 5 -u root >/dev/null 2>&1 && echo set; echo held"
    ),
    "limit pid 1": "prlimit --pid 1 --nofile=1:1 2>/dev/null && echo limited || echo held",
    "read pid 1": "cat /proc/1/mem /proc/1/environ /proc/1/maps 2>/dev/null | head -c1 | grep -q . && echo read || echo held",
    "reach the host of a virtual machine": "python3 -c 'import socket; socket.socket(40, 1)' 2>/dev/null && echo opened || echo held",
    "reach an engine": "ls /var/run/docker.sock /run/docker.sock /run/podman 2>/dev/null || echo held",
    "reach the helper's socket": "find / -xdev -path /usr -prune -o -type s -print 2>/dev/null | grep . || echo held",
    "become another user": "setpriv --reuid 1 --regid 1 --clear-groups true 2>/dev/null && echo became || echo held",
    "look at the machine's messages": "dmesg 2>/dev/null | grep -q . && echo read || echo held",
}

PTRACE = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
attached = libc.ptrace(16, 1, 0, 0) == 0
seized = libc.ptrace(0x4206, 1, 0, 0) == 0
print("traced" if attached or seized else "held")
"""


async def attempts(world: World, bystander: int) -> dict[str, Any]:
    (world.home / "secret").write_text(SECRET)
    sandbox = await world.provider().create(spec(f"{MINE}-escape"))
    try:
        place = await sandbox.machine()
        names = {"home": world.home, "state": world.state, "bystander": bystander}
        results: dict[str, Any] = {}
        for name, script in ATTEMPTS.items():
            done = await place.run(Command(["sh", "-c", script.format(**names)]))
            results[name] = (done.stderr + done.stdout).decode(errors="replace")
        done = await place.run(Command(["python3", "-c", PTRACE]))
        results["ptrace pid 1"] = (done.stderr + done.stdout).decode()
        still = await place.run(Command(["echo", "alive"]))
        results["alive"] = still.stdout.decode()
        results["written"] = (world.home / "written").exists()
        results["levels"] = dict(sandbox.levels)
        results["facts"] = dict(sandbox.info.facts)
        await sandbox.aclose()
    finally:
        await world.provider().destroy(f"{MINE}-escape")
    results["left"] = world.left()
    return results


@cache
def outcome(way: str) -> dict[str, Any]:
    # A process of the same user outside, whose name and environment hold what must not be seen.
    bystander = subprocess.Popen(
        ["sleep", "313"],
        executable="/bin/sleep",
        env={"CANARY": SECRET},
        user=None if way == "root" or os.geteuid() else 65534,
    )
    try:
        results: dict[str, Any] = act(way, attempts, bystander.pid)
        results["bystander lives"] = bystander.poll() is None
        return results
    finally:
        bystander.send_signal(signal.SIGKILL)
        bystander.wait()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("attempt", [*ATTEMPTS, "ptrace pid 1"])
def test_an_attempt_to_leave_the_place_fails(way: str, attempt: str) -> None:
    said = outcome(way)[attempt]
    assert said.strip().endswith("held"), said
    assert "set\n" not in said
    assert SECRET not in said


async def capabilities_by_bubblewrap(world: World) -> str:
    sandbox = await world.provider(confiner="bwrap").create(spec(f"{MINE}-caps"))
    try:
        done = await (await sandbox.machine()).run(Command(["sh", "-c", "grep -h ^Cap /proc/1/status /proc/self/status"]))
        await sandbox.aclose()
        return done.stdout.decode()
    finally:
        await world.provider().destroy(f"{MINE}-caps")


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="agentenv-capability-missing: bubblewrap")
def test_bubblewrap_keeps_no_capability_for_whoever_calls_it_also_for_user_0_of_a_namespace() -> None:
    assert {line.split()[1] for line in act(WAYS[0], capabilities_by_bubblewrap).splitlines()} == {"0" * 16}


@pytest.mark.parametrize("way", WAYS)
def test_after_every_attempt_the_place_lives_and_nothing_outside_has_changed(way: str) -> None:
    results = outcome(way)
    assert results["alive"] == "alive\n"
    assert results["bystander lives"]
    assert not results["written"]
    assert results["left"] == []
    assert not Path("/usr/written").exists()


@pytest.mark.parametrize("way", WAYS)
def test_the_record_says_how_every_limit_holds(way: str) -> None:
    levels = outcome(way)["levels"]
    assert set(levels) == {"memory", "processes", "cpu", "disk", "ttl"}
    assert levels["processes"] is Level.HARD
    assert levels["memory"] in {Level.HARD, Level.WATCHED}
    assert outcome(way)["facts"]["network"]["how"] in {"slirp4netns", "machine"}


SCORES = "cat /proc/1/oom_score_adj /proc/self/oom_score_adj"


async def scores(world: World) -> tuple[bytes, bytes]:
    sandbox = await world.provider().create(spec(f"{MINE}-victim"))
    try:
        place = await sandbox.machine()
        before = await place.run(Command(["sh", "-c", SCORES]))
        await place.run(Command(["sh", "-c", "echo 1000 > /proc/1/oom_score_adj"]))
        after = await place.run(Command(["sh", "-c", SCORES]))
        await sandbox.aclose()
    finally:
        await world.provider().destroy(f"{MINE}-victim")
    return before.stdout, after.stdout


@pytest.mark.parametrize("way", WAYS)
def test_pid_1_is_made_the_kernels_first_victim_by_nobody_for_longer_than_a_command(way: str) -> None:
    before, after = act(way, scores)
    assert len(before.split()) == 2
    assert after == before


STOPPING = {
    "once": "kill -STOP $PPID; exit 7",
    "for ever": "parent=$PPID; (while :; do kill -STOP $parent || exit; done) & exit 7",
    "from a daemon": 'parent=$PPID; setsid sh -c "while :; do kill -STOP $parent || exit; done" & exit 7',
}


async def stopped_supervisor(world: World) -> dict[str, tuple[Completed, float]]:
    clock = SystemClock()
    sandbox = await world.provider().create(spec(f"{MINE}-stops"))
    found = {}
    try:
        place = await sandbox.machine()
        for name, script in STOPPING.items():
            begun = clock.monotonic()
            done = await place.run(Command(["sh", "-c", script], timeout_seconds=30))
            found[name] = done, clock.monotonic() - begun
        await sandbox.aclose()
    finally:
        await world.provider().destroy(f"{MINE}-stops")
    return found


@pytest.mark.parametrize("way", WAYS)
def test_a_command_that_stops_its_own_supervisor_makes_nobody_wait(way: str) -> None:
    found = act(way, stopped_supervisor)
    assert found["once"][0].exit_code == 7
    for done, seconds in found.values():
        assert done.ending in {Ending.EXITED, Ending.SIGNALLED}
        assert seconds < within(5)


async def two_places(world: World) -> dict[str, str]:
    provider = world.provider()
    found = {}
    first = await provider.create(spec(f"{MINE}-one", network=None))
    second = await provider.create(spec(f"{MINE}-two", network=None))
    try:
        one, two = await first.machine(), await second.machine()
        await one.run(Command(["sh", "-c", "echo of-one > /app/f; echo of-one > /tmp/f; echo of-one > /dev/shm/f; sleep 77 & echo"]))
        seen = await two.run(Command(["sh", "-c", "ls /app /tmp /dev/shm; cat /proc/*/cmdline | tr '\\0' ' '; hostname"]))
        found["second sees"] = seen.stdout.decode()
        await first.aclose()
        await second.aclose()
        await provider.destroy(f"{MINE}-one")
        again = await world.provider().attach(f"{MINE}-two", epoch=2, token=f"t-{MINE}-two")
        alive = await (await again.machine()).run(Command(["echo", "alive"]))
        found["second after the first is gone"] = alive.stdout.decode()
        await again.aclose()
    finally:
        await provider.destroy(f"{MINE}-one")
        await provider.destroy(f"{MINE}-two")
    return found


@pytest.mark.parametrize("way", WAYS)
def test_two_places_see_nothing_of_each_other(way: str) -> None:
    found = act(way, two_places)
    assert "f" not in found["second sees"].split()
    assert "sleep 77" not in found["second sees"]
    assert found["second after the first is gone"] == "alive\n"


@contextmanager
def greeting_server() -> Iterator[int]:
    """A port of this machine's loopback that says so: whatever else may answer beyond a gateway's address does not."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def greet() -> None:
            with suppress(OSError):
                while True:
                    with server.accept()[0] as caller:
                        caller.sendall(b"loopback")

        thread = threading.Thread(target=greet, daemon=True)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


def greeted(host: str, port: int) -> str:
    """An expression that is true where `greeting_server` answers; it raises OSError where nobody does."""
    return f"socket.create_connection(({host!r}, {port}), 2).recv(8) == b'loopback'"


async def loopback_of_the_machine(world: World, port: int) -> tuple[str, str]:
    attempt = "try: print('reached {0}' if {1} else 'held')\nexcept OSError: print('held')"
    script = "\n".join(["import socket", *(attempt.format(host, greeted(host, port)) for host in ("127.0.0.1", "10.0.2.2"))])
    answers = []
    for mode in (NetworkMode.NONE, NetworkMode.ALLOW_ALL):
        sandbox = await world.provider().create(spec(f"{MINE}-net", network=NetworkPolicy(mode=mode)))
        try:
            done = await (await sandbox.machine()).run(Command(["python3", "-c", script]))
            answers.append(f"{sandbox.info.facts['network']['how']}: {done.stdout.decode().split()}")  # type: ignore[index]
            await sandbox.aclose()
        finally:
            await world.provider().destroy(f"{MINE}-net")
    return answers[0], answers[1]


@pytest.mark.parametrize("way", WAYS)
def test_the_machines_loopback_is_not_reachable_from_a_network_of_its_own(way: str) -> None:
    with greeting_server() as port:
        none, everything = act(way, loopback_of_the_machine, port)
    assert none == "none: ['held', 'held']"
    # Shared with the machine where slirp4netns can't be used: then it is recorded so, which the capabilities say too.
    assert everything in {"slirp4netns: ['held', 'held']", "machine: ['reached', '127.0.0.1', 'held']"}
    if way == "root":
        assert everything.startswith("slirp4netns")


async def own_network(world: World, port: int) -> dict[str, Any]:
    provider = world.provider()
    sandbox = await provider.create(spec(f"{MINE}-own-net", network=NetworkPolicy(mode=NetworkMode.ALLOW_ALL)))
    try:
        place = await sandbox.machine()
        script = f"import socket, sys; sys.exit(not {greeted('10.0.2.2', port)})"
        interfaces = await place.run(Command(["sh", "-c", "cut -d: -f1 /proc/net/dev; cat /etc/resolv.conf"]))
        to_machine = await place.run(Command(["python3", "-c", script]))
        return {"how": dict(sandbox.info.facts)["network"], "said": interfaces.stdout.decode(), "reached": to_machine.ok}
    finally:
        await sandbox.aclose()
        await provider.destroy(f"{MINE}-own-net")


@pytest.mark.skipif(os.geteuid() != 0, reason="agentenv-capability-missing: root")
@pytest.mark.parametrize("way", WAYS)
def test_where_the_tunnel_device_is_open_every_place_has_a_network_of_its_own(way: str) -> None:
    with greeting_server() as port:
        found = act(way, own_network, port, prepare=open_tunnels)
    assert found["how"]["how"] == "slirp4netns"
    assert "tap0" in found["said"]
    assert "nameserver 10.0.2.3" in found["said"]
    assert not found["reached"]


# It goes on only when it has told its status too, and that pipe is full for a while.
SLOW = """#!/bin/bash
exec {gate}> >(for n in {3..99}; do eval "exec $n>&-"; done; sleep 0.5; exec cat > /dev/null)
head -c 65536 /dev/zero >&$gate
exec $REAL --json-status-fd $gate "$@"
"""


def slow_bubblewrap(folder: Path) -> None:
    """One that has told its child's number for a while before that sets up its network, as on a machine under load."""
    open_tunnels()
    shim = folder / "bwrap"
    shim.write_text(SLOW.replace("$REAL", str(shutil.which("bwrap"))))
    for path, mode in ((shim, 0o755), (shim.parent, 0o755)):
        path.chmod(mode)
    os.environ["PATH"] = f"{shim.parent}:{os.environ['PATH']}"


@pytest.mark.skipif(os.geteuid() != 0, reason="agentenv-capability-missing: root")
@pytest.mark.skipif(shutil.which("bwrap") is None, reason="agentenv-capability-missing: bubblewrap")
def test_a_network_of_its_own_is_given_to_a_place_however_late_bubblewrap_sets_up_its_loopback() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, tempfile.TemporaryDirectory() as folder:
        found = act("user with bubblewrap", own_network, server.getsockname()[1], prepare=partial(slow_bubblewrap, Path(folder)))
    assert found["how"]["how"] == "slirp4netns"
    assert "tap0" in found["said"]


METADATA, ELSEWHERE = "169.254.169.254", "198.51.100.7"


def a_machine_of_a_cloud() -> None:
    """In a network namespace of this process alone: both addresses are this machine's, and everybody may make tunnels."""
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.unshare(0x40000000) == 0  # CLONE_NEWNET
    for words in ("link set lo up", *(f"addr add {address}/32 dev lo" for address in (METADATA, ELSEWHERE))):
        subprocess.run(["ip", *words.split()], check=True)
    open_tunnels()


async def reach_metadata(world: World) -> str:
    sandbox = await world.provider(network="slirp4netns").create(spec(f"{MINE}-meta", network=NetworkPolicy(mode=NetworkMode.ALLOW_ALL)))
    try:
        with socket.create_server(("", 0)) as server:
            port = server.getsockname()[1]
            reach = "\n".join(
                f"try:\n  socket.create_connection(({address!r}, {port}), 2); print('reached')\nexcept OSError as error: print(error.errno)"
                for address in (ELSEWHERE, METADATA)
            )
            done = await (await sandbox.machine()).run(Command(["python3", "-c", f"import socket\n{reach}"]))
        await sandbox.aclose()
        return done.stdout.decode() + done.stderr.decode()
    finally:
        await world.provider().destroy(f"{MINE}-meta")


@pytest.mark.skipif(os.geteuid() != 0, reason="agentenv-capability-missing: root")
@pytest.mark.skipif(shutil.which("ip") is None, reason="agentenv-capability-missing: iproute2")
@pytest.mark.parametrize("way", WAYS)
def test_where_a_cloud_tells_a_machine_its_keys_no_place_gets(way: str) -> None:
    assert act(way, reach_metadata, prepare=a_machine_of_a_cloud).split() == ["reached", str(errno.EHOSTUNREACH)]


METADATA_6 = ("fd00:ec2::254", "fd20:ce::254", "fe80::a9fe:a9fe")
TRY_6 = """
import socket
for address in %r:
    links = [number for number, _ in socket.if_nameindex()] if address.startswith("fe80") else [0]
    for link in links:
        with socket.socket(socket.AF_INET6) as client:
            client.settimeout(2)
            try:
                client.connect((address, %d, 0, link)); print("reached", address, link)
            except OSError as error:
                print("refused", address, link, error)
"""


def a_machine_of_a_cloud_with_ipv6() -> None:
    """The same with the addresses that clouds have for it in IPv6."""
    a_machine_of_a_cloud()
    for address in METADATA_6:
        subprocess.run(["ip", "-6", "addr", "add", f"{address}/128", "dev", "lo", "nodad"], check=True)


async def reach_metadata_6(world: World) -> str:
    sandbox = await world.provider(network="slirp4netns").create(spec(f"{MINE}-meta6", network=NetworkPolicy(mode=NetworkMode.ALLOW_ALL)))
    try:
        with socket.create_server(("::", 0), family=socket.AF_INET6) as server:
            port = server.getsockname()[1]
            with socket.socket(socket.AF_INET6) as here:
                here.connect((METADATA_6[0], port))  # this machine reaches it
            done = await (await sandbox.machine()).run(Command(["python3", "-c", TRY_6 % (METADATA_6, port)]))
        await sandbox.aclose()
        return done.stdout.decode() + done.stderr.decode()
    finally:
        await world.provider().destroy(f"{MINE}-meta6")


@pytest.mark.skipif(os.geteuid() != 0, reason="agentenv-capability-missing: root")
@pytest.mark.skipif(shutil.which("ip") is None, reason="agentenv-capability-missing: iproute2")
@pytest.mark.skipif(not Path("/proc/net/if_inet6").exists(), reason="agentenv-capability-missing: ipv6")
@pytest.mark.parametrize("way", WAYS)
def test_where_a_cloud_tells_a_machine_its_keys_by_ipv6_no_place_gets(way: str) -> None:
    said = act(way, reach_metadata_6, prepare=a_machine_of_a_cloud_with_ipv6)
    assert said.count("refused") >= len(METADATA_6), said
    assert "reached" not in said


OPENED = "cp /bin/sh /shell && chmod 6755 /shell && chmod 777 / && echo opened"


async def opened_root(world: World, parent: str) -> tuple[str, list[int]]:
    """What a place said that opens its root to all, and the modes of the folders above that root, nearest first."""
    top = world.home if parent == "home" else world.home / "shared"
    variables = {"HOME": str(world.home), "AGENT_ENV_LOCAL_SANDBOX_DIR": "" if parent == "home" else str(top)}
    world.home.chmod(0o755)
    if parent != "home":
        top.mkdir()
        top.chmod(0o1777)
    provider = world.provider()
    provider._environ = {**provider._environ, **variables}
    sandbox = await provider.create(spec(f"{MINE}-open"))
    try:
        place = await sandbox.machine()
        done = await place.run(Command(["sh", "-c", OPENED]))
        work = Path(str(sandbox.info.facts["work_dir"]))
        modes = [above.stat().st_mode & 0o777 for above in work.parents if above.is_relative_to(top) and above != top]
        await sandbox.aclose()
    finally:
        await provider.destroy(f"{MINE}-open")
    return done.stdout.decode(), modes


@pytest.mark.parametrize("parent", ["home", "a folder that all may write"])
@pytest.mark.parametrize("way", WAYS)
def test_a_set_id_program_that_a_place_leaves_in_its_opened_root_is_out_of_reach_of_other_users(way: str, parent: str) -> None:
    said, modes = act(way, opened_root, parent)
    assert said == "opened\n"
    assert 0o700 in modes


def test_a_folder_for_sandboxes_that_somebody_else_planted_is_refused_and_a_linked_one_is_never_changed(tmp_path: Path) -> None:
    shared, link = tmp_path / "shared", tmp_path / "link"
    shared.mkdir()
    shared.chmod(0o777)
    link.symlink_to(shared)
    with pytest.raises(StorageError, match="no folder of this user alone"):
        make_private(link)
    assert shared.stat().st_mode & 0o777 == 0o777
    if os.geteuid() == 0:
        planted = tmp_path / "planted"
        planted.mkdir(mode=0o700)
        os.chown(planted, 65534, 65534)
        with pytest.raises(StorageError, match="no folder of this user alone"):
            make_private(planted)
