"""What every confined sandbox of this machine is made by: its first record, its folder and groups, and what the confiner is told.

Everything here blocks and is called from a worker thread.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from agent_env.documents.network import NetworkPolicy
from agent_env.errors import InfrastructureError
from agent_env.places.helper import HelperConfig, binary_path
from agent_env.sandboxes.confined import limits as control
from agent_env.sandboxes.confined import link
from agent_env.sandboxes.confined.descriptors import in_memory
from agent_env.sandboxes.confined.launch import Plan, Started, between, start
from agent_env.sandboxes.confined.network import SLIRP, Network
from agent_env.sandboxes.confined.probe import Machine
from agent_env.sandboxes.confined.processes import MARKER, Identity, boot_id
from agent_env.sandboxes.confined.records import EVENTS, HELPER_SOCKET, SLIRP_SOCKET, Facts, Records, make_private
from agent_env.sandboxes.contract import Level, SandboxSpec

HELPER_INSIDE = "/.agentenv/helper"
_FIRST_PRIVATE_ID = 1_000_000_000
_IDS_EACH = 65_536
_RANGES = 16_000
_BACKLOG = 64


def first_facts(
    spec: SandboxSpec,
    work_dir: Path,
    network: Network,
    machine: Machine,
    *,
    home: str,
    notes: Sequence[str],
    bubblewrapped: bool = False,
) -> Facts:
    """What is written down before anything is made.

    Args:
        spec: The sandbox.
        work_dir: Its own files, to be made.
        network: How it reaches the outside.
        machine: What holds its limits, and who is who in it.
        home: Tells its control groups from another installation's.
        notes: What a person should know about it.
        bubblewrapped: Bubblewrap makes its namespaces, which keeps this user's own id.
    """
    policy, maker = spec.network or NetworkPolicy(), Identity.of(os.getpid())
    return Facts(
        sandbox_id=spec.sandbox_id,
        work_dir=str(work_dir),
        labels=dict(spec.labels),
        boot=boot_id(),
        maker=maker.dump() if maker else {},
        confiner="bwrap" if bubblewrapped else "helper",
        cgroups=tuple(str(group.folder) for group in control.groups(machine, spec, home)),
        base_uid=private_range(spec.sandbox_id) if machine.is_root and not bubblewrapped else None,
        network={
            "mode": network.mode,
            "how": network.how,
            "demanded": spec.network is not None,
            "policy": policy.model_dump(mode="json"),
        },
        levels={name: level.value for name, level in control.levels(machine).items()},
        limits={"memory": spec.memory_bytes, "processes": spec.processes, "cpu": spec.cpu, "disk": spec.disk_bytes},
        ttl_seconds=spec.ttl_seconds,
        notes=tuple(notes),
    )


def private_range(sandbox_id: str) -> int:
    """The first of the numbers that nobody but this sandbox's users has."""
    number = int.from_bytes(hashlib.sha256(sandbox_id.encode()).digest()[:8], "big")
    return _FIRST_PRIVATE_ID + number % _RANGES * _IDS_EACH


def make(facts: Facts, spec: SandboxSpec, machine: Machine, records: Records, begin: Callable[[Sequence[Path]], Started]) -> Facts:
    """Makes the folder and the control groups, has the place started, and writes down what runs.

    Args:
        facts: The first record, which is written already.
        spec: The sandbox.
        machine: What holds its limits.
        records: Where it is written down.
        begin: Fills the folder and starts the place; it is given the files of the groups that the place has to be put into.

    Raises:
        InfrastructureError: It can't be made.
        UnsupportedError: This machine does not allow it.
    """
    work_dir = Path(facts.work_dir)
    try:
        make_private(work_dir.parent)
        work_dir.mkdir(mode=0o700)
        started = begin([control.make(group) for group in control.groups(machine, spec, records.home)])
    except OSError as error:
        what = f"can't prepare {error.filename or work_dir}: {error.strerror}"
        raise InfrastructureError(what, concerns=spec.sandbox_id) from error
    running = replace(facts, phase="running", first=started.first.dump(), guardian=started.guardian.dump())
    records.write(running)
    return running


def confine(
    sandbox_id: str,
    folder: Path,
    config: HelperConfig,
    *,
    groups: Sequence[Path],
    own: Sequence[str],
    view: Sequence[str],
    log: Path,
    lend: Sequence[int] = (),
    seconds: float,
) -> Started:
    """Starts a place whose first process is the helper.

    Args:
        sandbox_id: Marks its processes.
        folder: Of its record; the helper listens there.
        config: What the helper is told.
        groups: The files by which a process or thread joins its control groups.
        own: See `launch.Plan`, as `view`, `log` and `lend`.
        view: As there.
        log: As there.
        lend: As there.
        seconds: How long that may take.

    Raises:
        UnsupportedError: This machine does not let its users make namespaces.
        InfrastructureError: It did not start; the message says what went wrong.
    """
    with (
        listening(folder / HELPER_SOCKET) as listener,
        in_memory(config.encode()) as told,
        between() as (first, guardian),
        control.oom_counter(group.parent for group in groups) as counter,
    ):
        plan = Plan(
            helper=binary_path(),
            own=own,
            view=view,
            payload=link.payload(HELPER_INSIDE, listener.fileno(), told, first, counter),
            environment={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", MARKER: sandbox_id},
            log=log,
            keep=(listener.fileno(), told, first, *(() if counter is None else (counter,))),
            lend=lend,
            guardian=guardian,
        )
        return start(plan, seconds=seconds)


def own_options(facts: Facts, spec: SandboxSpec, machine: Machine, groups: Sequence[Path], folder: Path) -> list[str]:
    """What `helper confine` is told beside the view: who is who, the limits, and the networking.

    Args:
        facts: The sandbox's first record.
        spec: The sandbox.
        machine: Where its networking program is.
        groups: The files by which a process or thread joins its control groups.
        folder: Of its record.
    """
    words = ["--events", str(folder / EVENTS), *map_options(facts.base_uid)]
    for group in groups:
        words += ["--cgroup", str(group)]
    if spec.processes and facts.levels["processes"] == Level.HARD:
        words += ["--processes", str(control.allowed_processes(spec.processes + control.SPARE_PROCESSES))]
    if spec.memory_bytes and facts.levels["memory"] == Level.WATCHED:
        words += ["--watch-memory", str(spec.memory_bytes)]
    if spec.disk_bytes:
        words += ["--file-size", str(spec.disk_bytes), "--watch-disk", str(spec.disk_bytes), facts.work_dir]
    if facts.network["how"] == SLIRP:
        words += ["--slirp", str(machine.slirp)]
        words += ["--slirp-api", str(folder / SLIRP_SOCKET)] if spec.ports else []
    return words


def map_options(base_uid: int | None) -> list[str]:
    """Who is who inside: numbers of the place's own where root makes it, else this one user."""
    if base_uid is None:
        return []
    return [word for option in ("--uid-map", "--gid-map") for word in (option, "0", str(base_uid), str(_IDS_EACH))]


@contextlib.contextmanager
def listening(path: Path) -> Iterator[socket.socket]:
    """A socket at a path of any length: it is named through its folder's descriptor."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(f"/proc/self/fd/{folder}/{path.name}")
        listener.listen(_BACKLOG)
        yield listener
    finally:
        listener.close()
        os.close(folder)
