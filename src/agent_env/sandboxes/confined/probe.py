"""What this machine can do for a confined place, as data. It only looks; `trial.trial` makes one."""

from __future__ import annotations

import errno
import os
import platform
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from agent_env import host

OLDEST_PYTHON = (3, 9)
_CONTROLLERS = ("memory", "cpu")
_WHOLE_RANGE = 2**32 - 1
_NONE_ALLOWED = "user.max_user_namespaces is 0"
_ONLY_ROOT = "kernel.unprivileged_userns_clone is 0"
_ONLY_PROFILES = "kernel.apparmor_restrict_unprivileged_userns is 1"
_FILTERED = "a filter of system calls forbids them, as container engines put around what they run"
_CLONE_NEWUSER, _NO_FLAG = 0x10000000, 0x1
_SWITCHES = {
    _NONE_ALLOWED: "sysctl user.max_user_namespaces=16384",
    _ONLY_ROOT: "sysctl kernel.unprivileged_userns_clone=1",
    _ONLY_PROFILES: "sysctl kernel.apparmor_restrict_unprivileged_userns=0",
    _FILTERED: "start this container with --privileged, or with --security-opt seccomp=unconfined",
}
"""Why there are no user namespaces → what allows them."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One part of this machine, for a person."""

    name: str
    ok: bool
    detail: str
    hint: str = ""
    """What to install or set, when it is missing and would help."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What was found. Paths are None where the part is missing or can't be used by this user."""

    is_root: bool
    """Real root: uid 0 with every id of the outermost user namespace."""
    user_namespaces: str = ""
    """Why this user can make none; empty when it can."""
    for_nobody: bool = False
    """Nor can anybody else, so bubblewrap, which some machines allow alone, is of no use either."""
    bwrap: str | None = None
    slirp: str | None = None
    slirp_problem: str = ""
    controllers: Mapping[str, Path] = field(default_factory=dict)
    """`memory` and `cpu` → the folder below which groups can be made."""
    cgroup_version: int = 0
    private_process_counts: bool = True
    """RLIMIT_NPROC counts each user namespace by itself."""
    python: Path | None = None
    """A Python to be shown at /opt/python; None when the machine's own /usr has one that is new enough."""
    python_detail: str = ""

    @property
    def can_confine(self) -> bool:
        """A place can be confined at all."""
        return not self.user_namespaces or (self.bwrap is not None and not self.for_nobody)


@cache
def survey() -> Machine:
    """Looks at this machine, once per process (about 1 ms)."""
    if not host.IS_LINUX:
        needs = f"confined places need Linux; this is {host.system_name()}"
        return Machine(is_root=False, user_namespaces=needs, slirp_problem="it needs Linux")
    is_root = os.geteuid() == 0 and _whole_range()
    version, controllers = _control_groups()
    slirp, problem = _slirp(is_root)
    python, detail = python_for_inside(Path("/usr"), Path(sys.base_prefix))
    never = _problem_of_all()
    return Machine(
        is_root=is_root,
        user_namespaces=never or ("" if is_root else _problem_of_others()),
        for_nobody=never != "",
        bwrap=shutil.which("bwrap"),
        slirp=slirp,
        slirp_problem=problem,
        controllers=controllers,
        cgroup_version=version,
        private_process_counts=is_root or _kernel() >= (5, 14),
        python=python,
        python_detail=detail,
    )


def findings(machine: Machine, engine: Finding) -> Iterator[Finding]:
    """The lines about one machine.

    Args:
        machine: What was found.
        engine: Whether a container engine answers: a container plays the machine where nothing can be confined.
    """
    if not host.IS_LINUX:
        yield Finding("system", True, f"{host.system_name()}: a container of a container engine plays the machine of every sandbox")
        yield _confined(machine, engine)
        yield engine
        return
    who = "root: private ids for every place" if machine.is_root else f"uid {os.geteuid()}: places share this user's id"
    yield Finding("user", True, who)
    problem = machine.user_namespaces
    yield Finding("user namespaces", not problem, problem or "usable", _SWITCHES.get(problem, ""))
    yield Finding(
        "bubblewrap", machine.bwrap is not None, machine.bwrap or "not installed", "" if machine.bwrap else "apt install bubblewrap"
    )
    yield _confined(machine, engine)
    yield Finding(
        "outbound network",
        machine.slirp is not None,
        machine.slirp or machine.slirp_problem,
        "" if machine.slirp else _slirp_hint(machine.slirp_problem),
    )
    groups = ", ".join(sorted(machine.controllers)) or "none that this user may use"
    detail = f"version {machine.cgroup_version or '-'}: {groups}"
    yield Finding(
        "control groups", bool(machine.controllers), detail, "" if machine.controllers else "memory is watched, cpu is not limited"
    )
    yield Finding("subordinate ids", shutil.which("newuidmap") is not None, shutil.which("newuidmap") or "newuidmap is not installed")
    yield Finding("python inside", bool(machine.python_detail), machine.python_detail or "none that is new enough")
    yield engine


def _confined(machine: Machine, engine: Finding) -> Finding:
    if machine.can_confine:
        return Finding("confined places", True, "possible")
    if engine.ok:
        return Finding("confined places", True, f"not possible, so a container of {engine.detail} plays the machine")
    if not host.IS_LINUX:
        return Finding("confined places", False, machine.user_namespaces, engine.hint)
    hint = f"allow user namespaces, install bubblewrap, or {engine.hint}; --unsafe-host runs without, on a machine you can lose"
    return Finding("confined places", False, "neither user namespaces nor bubblewrap can be used, and no container engine answers", hint)


def _slirp_hint(problem: str) -> str:
    remedy = "let this user open /dev/net/tun" if "/dev/net/tun" in problem else "apt install slirp4netns"
    return f"{remedy}; until then, places that may use the network use this machine's own, see its sockets' names and reach its loopback"


def _whole_range() -> bool:
    """Whether this user namespace has every id, so that any range can be given to a place."""
    first = Path("/proc/self/uid_map").read_text().split()
    return first[:2] == ["0", "0"] and int(first[2]) >= _WHOLE_RANGE


def _problem_of_all() -> str:
    """What keeps everybody, root and bubblewrap too, from making a user namespace."""
    if not Path("/proc/self/ns/user").exists():
        return "the kernel has none"
    if _reads("/proc/sys/user/max_user_namespaces", "0"):
        return _NONE_ALLOWED
    return _FILTERED if _is_filtered() else ""


def _is_filtered() -> bool:
    """A filter of system calls refuses what makes user namespaces. Nearly nobody has one, and only then is it asked (ctypes: 5 ms)."""
    if "\nSeccomp:\t2\n" not in Path("/proc/self/status").read_text():
        return False
    import ctypes

    # (kernel) With a bit that it doesn't know, `unshare` changes nothing and answers EINVAL; a filter answers before it.
    ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWUSER | _NO_FLAG)
    return ctypes.get_errno() in {errno.EPERM, errno.EACCES, errno.ENOSYS}


def _problem_of_others() -> str:
    """What keeps those that are neither root nor a program that this machine allows."""
    if _reads("/proc/sys/kernel/unprivileged_userns_clone", "0"):
        return _ONLY_ROOT
    if _reads("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1"):
        return _ONLY_PROFILES
    return ""


def _reads(path: str, value: str) -> bool:
    try:
        return Path(path).read_text().strip() == value
    except OSError:
        return False


def _slirp(is_root: bool) -> tuple[str | None, str]:
    found = shutil.which("slirp4netns")
    if found is None:
        return None, "slirp4netns is not installed"
    if is_root or os.access("/dev/net/tun", os.R_OK | os.W_OK):
        return found, ""
    return None, "/dev/net/tun can't be opened by this user"


def _control_groups() -> tuple[int, dict[str, Path]]:
    """Version 1 hierarchies first: a controller is in one or in the other."""
    found: dict[str, Path] = {}
    for name in _CONTROLLERS:
        folder = Path("/sys/fs/cgroup") / name
        if (folder / "cgroup.procs").exists() and os.access(folder, os.W_OK):
            found[name] = folder
    if found:
        return 1, found
    root = _unified_root()
    if root is None:
        return (1 if Path("/sys/fs/cgroup/memory").exists() else 0), {}
    try:
        enabled = (root / "cgroup.subtree_control").read_text().split()
    except OSError:
        return 2, {}
    return 2, {name: root for name in _CONTROLLERS if name in enabled}


def _unified_root() -> Path | None:
    """Where this user may make version 2 groups: the root for root, else a delegated ancestor of this process's group."""
    mount = Path("/sys/fs/cgroup")
    if not (mount / "cgroup.controllers").exists():
        return None
    if os.geteuid() == 0:
        return mount if os.access(mount, os.W_OK) else None
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    own = next((line[3:] for line in lines if line.startswith("0::")), "/")
    for folder in (mount / own.lstrip("/")).parents:
        # Moving a process needs write access to the common ancestor, so a folder that is merely writable serves only from there up.
        if folder.is_relative_to(mount) and os.access(folder / "cgroup.procs", os.W_OK) and os.access(folder, os.W_OK):
            return folder
    return None


def _kernel() -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", platform.release())[:2])


def python_for_inside(usr: Path, running: Path) -> tuple[Path | None, str]:
    """Which interpreter the inside gets.

    Args:
        usr: The folder that is shown as /usr.
        running: The base folder of the running interpreter.

    Returns:
        The folder to show at /opt/python, or None when `usr` has an interpreter that is new enough; and a line about it.
    """
    for folder in ("local/bin", "bin"):
        program = (usr / folder / "python3").resolve()
        version = re.fullmatch(r"python(\d+)\.(\d+)", program.name)
        if version and program.is_relative_to(usr.resolve()) and program.exists():
            numbers = int(version[1]), int(version[2])
            if numbers >= OLDEST_PYTHON:
                return None, f"/usr/{folder}/python3 is {numbers[0]}.{numbers[1]}"
            break
    if (running / "bin").is_dir():
        return running, f"{running} is shown at /opt/python"
    return None, ""
