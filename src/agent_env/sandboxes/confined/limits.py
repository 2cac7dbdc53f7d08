"""How a place's limits hold on this machine, and the control groups that hold them."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from agent_env.sandboxes.confined.probe import Machine
from agent_env.sandboxes.contract import Level, SandboxSpec

_PARENT = "agentenv"
_THREADS = ("tasks", "cgroup.threads")
"""(kernel) Where a group of version 1, and a threaded one of version 2, takes single threads."""
_COMMANDS = "commands"
"""The part of a version 2 group that all of a place but its first process is in."""
_MOST_PROCESSES = 1024
"""Of a place whose share of time no group holds. There each session gets as much as the helper that has to end them: measured with 1024
that fork without end, their ending is told within a second of their limit; with 2048, sometimes ten seconds later."""
SPARE_PROCESSES = 16
"""What the helper itself may need beside the commands."""
_PERIOD_MICROSECONDS = 100_000
_LEAST_QUOTA_MICROSECONDS = 1000


@dataclass(frozen=True, slots=True)
class Group:
    """A control group that is to be made: its folder and what to write into which of its files."""

    folder: Path
    settings: Mapping[str, str]
    """A name that ends in `?` is written where the file exists."""
    passes_on: frozenset[str] = field(default=frozenset())
    """Controllers that its own parts use."""
    threaded: bool = False
    """It takes single threads, of processes that are in the group above."""


def levels(machine: Machine, *, confined: bool = True) -> dict[str, Level]:
    """What holds each limit here."""
    return {
        "memory": Level.HARD if "memory" in machine.controllers else (Level.WATCHED if confined else Level.NONE),
        "processes": Level.HARD if confined and machine.private_process_counts else Level.NONE,
        "cpu": Level.HARD if "cpu" in machine.controllers else Level.NONE,
        "disk": Level.WATCHED if confined else Level.NONE,
        "ttl": Level.HARD,
    }


def groups(machine: Machine, spec: SandboxSpec, home: str) -> list[Group]:
    """The control groups of a sandbox, in the order in which they are made and joined.

    The helper must answer also when its place has used up its share of time, so only what it starts is in the group that limits that: in
    version 1, where each controller has a hierarchy of its own, its starting thread alone joins; in version 2 the whole process joins the
    group that limits memory, and that thread a part of it. Ids are unique in one installation only, groups on the machine: `home` tells.
    """
    unified = machine.cgroup_version == 2
    name = _name(spec.sandbox_id, home)
    made = []
    memory, cpu = _memory(spec, unified), _cpu(spec, unified)
    if memory and "memory" in machine.controllers:
        made.append(Group(machine.controllers["memory"] / _PARENT / name, memory))
    if not cpu or "cpu" not in machine.controllers:
        return made
    folder = machine.controllers["cpu"] / _PARENT / name
    if not unified:
        return [*made, Group(folder, cpu)]
    above = Group(folder, memory if made else {}, passes_on=frozenset({"cpu"}))
    return [above, Group(folder / _COMMANDS, cpu, threaded=True)]


def standing(machine: Machine, sandbox_id: str, home: str) -> tuple[str, ...]:
    """The folders of a sandbox's groups as they are there, for one whose record is lost."""
    wholes = {parent / _PARENT / _name(sandbox_id, home) for parent in machine.controllers.values()}
    return tuple(str(folder) for whole in sorted(wholes) for folder in (whole, whole / _COMMANDS) if folder.is_dir())


def bounded(machine: Machine, spec: SandboxSpec) -> SandboxSpec:
    """The sandbox as it can be kept in hand here: with no more processes than can be ended in time, and than this user may have at all."""
    shared = "cpu" not in machine.controllers or spec.cpu <= 0
    most = max(1, allowed_processes(spec.processes + SPARE_PROCESSES) - SPARE_PROCESSES)
    most = min(most, _MOST_PROCESSES) if shared else most
    return replace(spec, processes=most) if spec.processes > most else spec


def allowed_processes(wanted: int) -> int:
    """As many of these as this process's hard limit leaves, which a place can't raise: shared machines give each user a few thousand."""
    _, most = resource.getrlimit(resource.RLIMIT_NPROC)
    return wanted if most == resource.RLIM_INFINITY else min(wanted, most)


def _name(sandbox_id: str, home: str) -> str:
    return f"{sandbox_id}-{home}"


def _memory(spec: SandboxSpec, unified: bool) -> dict[str, str]:
    if not spec.memory_bytes:
        return {}
    most = str(spec.memory_bytes)
    if unified:
        return {"memory.max": most, "memory.swap.max?": "0"}
    return {"memory.limit_in_bytes": most, "memory.memsw.limit_in_bytes?": most}


def _cpu(spec: SandboxSpec, unified: bool) -> dict[str, str]:
    if spec.cpu <= 0:
        return {}
    quota = max(int(spec.cpu * _PERIOD_MICROSECONDS), _LEAST_QUOTA_MICROSECONDS)
    if unified:
        return {"cpu.max": f"{quota} {_PERIOD_MICROSECONDS}"}
    return {"cpu.cfs_period_us": str(_PERIOD_MICROSECONDS), "cpu.cfs_quota_us": str(quota)}


def make(group: Group) -> Path:
    """Makes the group with its limits.

    Returns:
        The file that a number is written to: of a process, or where its name is `tasks`, of a thread.

    Raises:
        OSError: The kernel refuses.
    """
    _make_folders(group)
    folder = f"{group.folder}/"
    for name, value in group.settings.items():
        try:
            # Never created: in a group, a file that is not there is a limit that the kernel does not have.
            handle = os.open(folder + name.removesuffix("?"), os.O_WRONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            if name.endswith("?"):
                continue
            raise
        try:
            os.write(handle, value.encode())
        finally:
            os.close(handle)
    if group.threaded:
        return group.folder / _THREADS[1]
    threads = group.folder / _THREADS[0]
    return threads if threads.exists() else group.folder / "cgroup.procs"


def takes_threads(files: Iterable[Path]) -> bool:
    """Whether any of the files that `make` returned wants the number of a thread."""
    return any(file.name in _THREADS for file in files)


def _make_folders(group: Group) -> None:
    parent = group.folder.parent
    for last in (False, False, True):
        try:
            parent.mkdir(exist_ok=True)
            wanted = {name.split(".")[0] for name in group.settings} | group.passes_on
            if wanted and (parent / "cgroup.subtree_control").exists():
                (parent / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in sorted(wanted)))
            group.folder.mkdir(exist_ok=True)
            if group.threaded:
                (group.folder / "cgroup.type").write_text("threaded")
        except FileNotFoundError:  # the last other sandbox took the parent with it
            if last:
                raise
        else:
            return


def members(folders: Iterable[str]) -> set[int]:
    """The processes that are in any of the groups."""
    found: set[int] = set()
    for folder in folders:
        with contextlib.suppress(OSError):
            found.update(int(line) for line in (Path(folder) / "cgroup.procs").read_text().split())
    return found


def remove(folders: Iterable[str]) -> list[str]:
    """Removes the groups. Returns those that are still there (their processes have not ended)."""
    left = []
    for folder in sorted(folders, key=len, reverse=True):  # a part before its whole
        path = Path(folder)
        whole = path.parent if path.name == _COMMANDS else path
        if whole.parent.name != _PARENT or not path.is_relative_to("/sys/fs/cgroup"):
            continue  # a damaged record must not name somebody else's group
        try:
            path.rmdir()
        except FileNotFoundError:
            continue
        except OSError:
            left.append(folder)
            continue
        if path is whole:
            with contextlib.suppress(OSError):
                path.parent.rmdir()  # goes with the last one
    return left


@contextlib.contextmanager
def oom_counter(folders: Iterable[Path]) -> Iterator[int | None]:
    """A descriptor of the file that counts what the kernel ended for memory in these groups; None when nothing counts.

    It is the place's own helper that looks, around each command (`helper/limits.c`).
    """
    counters = (folder / name for folder in folders for name in ("memory.events", "memory.oom_control"))
    counter = next((os.open(file, os.O_RDONLY | os.O_CLOEXEC) for file in counters if file.exists()), None)
    try:
        yield counter
    finally:
        if counter is not None:
            os.close(counter)
