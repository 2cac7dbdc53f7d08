"""How a place's limits hold on this machine, and the control groups that hold them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from agent_env.sandboxes.contract import Level, SandboxSpec
from agent_env.sandboxes.local.probe import Machine

_PARENT = "agentenv"
_COUNTER_BYTES = 4096
_PERIOD_MICROSECONDS = 100_000
_LEAST_QUOTA_MICROSECONDS = 1000


@dataclass(frozen=True, slots=True)
class Group:
    """A control group that is to be made: its folder and what to write into which of its files."""

    folder: Path
    settings: Mapping[str, str]
    """A name that ends in `?` is written where the file exists."""


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
    """The control groups of a sandbox, one a hierarchy. Ids are unique in one installation only, groups on the machine: `home` tells."""
    unified = machine.cgroup_version == 2
    wanted: dict[Path, dict[str, str]] = {}
    for controller, settings in (("memory", _memory(spec, unified)), ("cpu", _cpu(spec, unified))):
        if settings and controller in machine.controllers:
            folder = machine.controllers[controller] / _PARENT / f"{spec.sandbox_id}-{home}"
            wanted.setdefault(folder, {}).update(settings)
    return [Group(folder, settings) for folder, settings in wanted.items()]


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
        The file that a process's number is written to.

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
    return group.folder / "cgroup.procs"


def _make_folders(group: Group) -> None:
    parent = group.folder.parent
    for last in (False, False, True):
        try:
            parent.mkdir(exist_ok=True)
            if (parent / "cgroup.subtree_control").exists():
                wanted = {name.split(".")[0] for name in group.settings}
                (parent / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in sorted(wanted)))
            group.folder.mkdir(exist_ok=True)
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
    for folder in folders:
        path = Path(folder)
        if path.parent.name != _PARENT or not path.is_relative_to("/sys/fs/cgroup"):
            continue  # a damaged record must not name somebody else's group
        try:
            path.rmdir()
        except FileNotFoundError:
            continue
        except OSError:
            left.append(folder)
            continue
        with contextlib.suppress(OSError):
            path.parent.rmdir()  # goes with the last one
    return left


def oom_counter(folders: Iterable[str]) -> int | None:
    """A descriptor of the file that counts what the kernel ended for memory in these groups; None when nothing counts."""
    for folder in folders:
        for name in ("memory.events", "memory.oom_control"):
            with contextlib.suppress(OSError):
                return os.open(f"{folder}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    return None


def oom_kills(counter: int) -> int:
    """How many processes that is so far; 0 once the group is gone."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        return int(os.pread(counter, _COUNTER_BYTES, 0).rpartition(b"oom_kill ")[2].split()[0])
    return 0
