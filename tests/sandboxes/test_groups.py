"""Which control groups hold a sandbox's limits, for both versions, by what is written into which file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agent_env.sandboxes import Level
from agent_env.sandboxes.confined import limits
from agent_env.sandboxes.confined.probe import Machine
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


def unified(tmp_path: Path) -> Path:
    group = tmp_path / "agentenv/local-g-home"
    with_files(group, "memory.max", "memory.swap.max", "cgroup.subtree_control")
    with_files(group / "commands", "cpu.max", "cgroup.type")
    (tmp_path / "agentenv/cgroup.subtree_control").touch()
    return group


def test_version_2_limits_the_time_of_the_helpers_starting_thread_and_the_memory_of_all(tmp_path: Path) -> None:
    group = unified(tmp_path)
    made = limits.groups(machine(2, memory=tmp_path, cpu=tmp_path), spec("local-g", memory_bytes=1 << 30, cpu=0.5), "home")
    files = [limits.make(group) for group in made]
    assert files == [group / "cgroup.procs", group / "commands/cgroup.threads"]
    assert limits.takes_threads(files)
    assert written(tmp_path) == {
        "agentenv/cgroup.subtree_control": "+cpu +memory",
        "agentenv/local-g-home/cgroup.subtree_control": "+cpu",
        "agentenv/local-g-home/memory.max": "1073741824",
        "agentenv/local-g-home/memory.swap.max": "0",
        "agentenv/local-g-home/commands/cgroup.type": "threaded",
        "agentenv/local-g-home/commands/cpu.max": "50000 100000",
    }


def test_version_2_keeps_the_first_process_out_of_the_part_that_limits_time_where_memory_has_no_limit(tmp_path: Path) -> None:
    group = unified(tmp_path)
    made = limits.groups(machine(2, memory=tmp_path, cpu=tmp_path), spec("local-g", memory_bytes=0, cpu=2.0), "home")
    assert [limits.make(each) for each in made] == [group / "cgroup.procs", group / "commands/cgroup.threads"]
    assert (group / "memory.max").read_text() == ""
    assert (group / "commands/cpu.max").read_text() == "200000 100000"


def test_version_2_needs_one_group_alone_where_time_has_no_limit(tmp_path: Path) -> None:
    group = unified(tmp_path)
    made = limits.groups(machine(2, memory=tmp_path, cpu=tmp_path), spec("local-g", memory_bytes=1 << 30, cpu=0.0), "home")
    assert [limits.make(each) for each in made] == [group / "cgroup.procs"]
    assert (group / "commands/cgroup.type").read_text() == ""


REAL = Path("/sys/fs/cgroup/unified") if Path("/sys/fs/cgroup/unified").is_dir() else Path("/sys/fs/cgroup")


@pytest.mark.skipif(
    not os.access(REAL, os.W_OK) or not (REAL / "cgroup.subtree_control").exists(), reason="agentenv-capability-missing: cgroup2"
)
def test_what_a_thread_starts_in_a_part_of_a_version_2_group_is_in_that_part_and_the_other_threads_are_not() -> None:
    """The kernel's own rule, which needs no controller to be seen."""
    top = REAL / "agentenv" / f"local-{os.getpid()}-threads"
    made = [limits.Group(top, {}), limits.Group(top / "commands", {}, threaded=True)]
    process = subprocess.Popen([sys.executable, "-c", STARTER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        whole, part = (limits.make(group) for group in made)
        whole.write_text(str(process.pid))
        part.write_text(process.stdout.readline().strip())
        process.stdin.write("go\n")
        process.stdin.flush()
        child = process.stdout.readline().strip()

        def group_of(number: str) -> str:
            return next(line for line in Path(f"/proc/{number}/cgroup").read_text().splitlines() if line.startswith("0::"))

        assert group_of(str(process.pid)).endswith("-threads")
        assert group_of(child).endswith("-threads/commands")
        assert limits.members([str(top), str(top / "commands")]) == {process.pid, int(child)}
    finally:
        process.communicate("\n")
        assert limits.remove([str(top), str(top / "commands")]) == []
    assert not top.exists()


STARTER = """
import os, subprocess, sys, threading
go = threading.Event()
def starter():
    print(threading.get_native_id(), flush=True)
    go.wait()
    child = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    print(child.pid, flush=True)
    sys.stdin.readline()
    child.communicate()
thread = threading.Thread(target=starter)
thread.start()
sys.stdin.readline()
go.set()
thread.join()
"""


@pytest.mark.parametrize(
    ("controllers", "cpu", "wanted", "given"),
    [
        ({"cpu": Path("/c")}, 1.0, 4096, 4096),
        ({"cpu": Path("/c")}, 0.0, 4096, 1024),
        ({}, 1.0, 4096, 1024),
        ({}, 1.0, 64, 64),
        ({}, 1.0, 0, 0),
    ],
)
def test_where_no_group_holds_a_places_time_it_has_no_more_processes_than_can_be_ended_in_time(
    controllers: dict[str, Path], cpu: float, wanted: int, given: int
) -> None:
    assert limits.bounded(machine(1, **controllers), spec("x", processes=wanted, cpu=cpu)).processes == given


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


@pytest.mark.parametrize("name", ["memory.events", "memory.oom_control"])
def test_what_counts_kills_for_memory_is_found_in_both_versions(tmp_path: Path, name: str) -> None:
    with limits.oom_counter([tmp_path]) as counter:
        assert counter is None
    (tmp_path / name).write_text("oom_kill 3\n")
    with limits.oom_counter([tmp_path / "other", tmp_path]) as counter:
        assert counter is not None
        assert os.pread(counter, 99, 0) == b"oom_kill 3\n"
