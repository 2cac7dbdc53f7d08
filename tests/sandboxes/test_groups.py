"""Which control groups hold a sandbox's limits, for both versions, by what is written into which file."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent_env.sandboxes import Level
from agent_env.sandboxes.local import limits
from agent_env.sandboxes.local.probe import Machine
from tests.sandboxes.people import spec


def machine(version: int, **controllers: Path) -> Machine:
    return Machine(is_root=True, cgroup_version=version, controllers=controllers)


def with_files(folder: Path, *names: str) -> None:
    """What a kernel would have made."""
    folder.mkdir(parents=True)
    for name in names:
        (folder / name).touch()


def written(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_version_1_uses_one_group_a_hierarchy(tmp_path: Path) -> None:
    with_files(tmp_path / "memory/agentenv/local-g-home", "memory.limit_in_bytes")
    with_files(tmp_path / "cpu/agentenv/local-g-home", "cpu.cfs_period_us", "cpu.cfs_quota_us")
    made = limits.groups(
        machine(1, memory=tmp_path / "memory", cpu=tmp_path / "cpu"), spec("local-g", memory_bytes=1 << 30, cpu=1.5), "home"
    )
    files = [limits.make(group) for group in made]
    assert files == [tmp_path / "memory/agentenv/local-g-home/cgroup.procs", tmp_path / "cpu/agentenv/local-g-home/cgroup.procs"]
    assert written(tmp_path) == {
        "memory/agentenv/local-g-home/memory.limit_in_bytes": "1073741824",
        "cpu/agentenv/local-g-home/cpu.cfs_period_us": "100000",
        "cpu/agentenv/local-g-home/cpu.cfs_quota_us": "150000",
    }


def test_version_2_uses_one_group_below_a_parent_that_passes_the_controllers_on(tmp_path: Path) -> None:
    with_files(tmp_path / "agentenv/local-g-home", "memory.max", "cpu.max", "memory.swap.max")
    (tmp_path / "agentenv/cgroup.subtree_control").touch()
    made = limits.groups(machine(2, memory=tmp_path, cpu=tmp_path), spec("local-g", memory_bytes=1 << 30, cpu=0.5), "home")
    files = [limits.make(group) for group in made]
    assert files == [tmp_path / "agentenv/local-g-home/cgroup.procs"]
    assert written(tmp_path) == {
        "agentenv/cgroup.subtree_control": "+cpu +memory",
        "agentenv/local-g-home/memory.max": "1073741824",
        "agentenv/local-g-home/memory.swap.max": "0",
        "agentenv/local-g-home/cpu.max": "50000 100000",
    }


@pytest.mark.parametrize(("memory", "cpu", "count"), [(0, 0.0, 0), (1 << 20, 0.0, 1), (0, 1.0, 1)])
def test_what_has_no_limit_needs_no_group(tmp_path: Path, memory: int, cpu: float, count: int) -> None:
    assert (
        len(limits.groups(machine(1, memory=tmp_path / "m", cpu=tmp_path / "c"), spec("x", memory_bytes=memory, cpu=cpu), "home")) == count
    )


def test_without_control_groups_memory_is_watched_and_cpu_is_not_limited() -> None:
    found = limits.levels(machine(0))
    assert (found["memory"], found["cpu"], found["processes"]) == (Level.WATCHED, Level.NONE, Level.HARD)
    old = limits.levels(Machine(is_root=False, private_process_counts=False))
    assert old["processes"] is Level.NONE


def test_a_damaged_record_never_removes_a_group_of_somebody_else(tmp_path: Path) -> None:
    other = tmp_path / "agentenv/x"
    other.mkdir(parents=True)
    assert limits.remove([str(other), "/sys/fs/cgroup/memory/system.slice"]) == []
    assert other.exists()


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n", 3),
        ("low 0\nhigh 0\nmax 9\noom 2\noom_kill 2\noom_group_kill 0\n", 2),
        ("", 0),
    ],
)
def test_kills_for_memory_are_counted_in_both_versions(tmp_path: Path, text: str, count: int) -> None:
    (tmp_path / "memory.events").write_text(text)
    counter = limits.oom_counter([str(tmp_path)])
    assert counter is not None
    assert limits.oom_kills(counter) == count
