"""What a place sees: its own root, a minimal /etc, an environment from an allow-list, one user, a sudo that runs its arguments."""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent_env.documents.network import NetworkMode, NetworkPolicy
from agent_env.places import Command
from agent_env.sandboxes.confined import limits, probe
from agent_env.sandboxes.local.examine import examine
from agent_env.sandboxes.local.provider import LocalProvider
from agent_env.sandboxes.local.trial import trial
from tests.busy import within
from tests.sandboxes.people import MINE, SECRET, WAYS, World, act, spec, world


@pytest.fixture(name="here")
def _here() -> Iterator[World]:
    with world("root" if os.geteuid() == 0 else "user without bubblewrap") as made:
        yield made


async def ask(provider: LocalProvider, *scripts: str, **changes: Any) -> list[str]:
    """What each script prints, in one fresh place."""
    sandbox = await provider.create(spec(f"{MINE}-view", **changes))
    try:
        place = await sandbox.machine()
        answers = [await place.run(Command(["sh", "-c", script])) for script in scripts]
        return [(answer.stdout + answer.stderr).decode().strip() for answer in answers]
    finally:
        await sandbox.aclose()
        await provider.destroy(f"{MINE}-view")


async def basics(world: World) -> list[str]:
    # Of this child alone: what a person's umask is must not show in the place, nor must a small limit of processes be in its way.
    os.umask(0o077)
    resource.setrlimit(resource.RLIMIT_NPROC, (2000, 2000))
    return await ask(
        world.provider(),
        "id -u; id -un; pwd; echo $HOME; hostname",
        "env | cut -d= -f1 | sort | tr '\\n' ' '",
        "for d in /app /work /loaded /tmp /home /root /var/tmp; do touch $d/x || echo $d; done; echo done",
        "ls -A /etc | tr '\\n' ' '; cat /etc/passwd | cut -d: -f1 | tr '\\n' ' '",
        "python3 -c 'import sys; print(sys.version_info >= (3, 9))'",
        "ls /dev | sort | tr '\\n' ' '; touch /dev/shm/x && echo writable",
        "python3 -c 'import pty, os; m, s = pty.openpty(); print(os.ttyname(s))'",
        "stat -c %a /app /work /loaded /root /var/tmp; umask",
        "bash -c 'ulimit -u'",
        processes=4096,
        cpu=1.0,
    )


@pytest.mark.parametrize("way", WAYS)
def test_a_place_has_a_root_of_its_own_with_one_user(way: str) -> None:
    user, variables, folders, etc, python, devices, terminal, modes, processes = act(way, basics)
    assert int(processes) <= 2000 - limits.SPARE_PROCESSES
    assert modes.split() == ["755", "755", "755", "755", "1777", "0022"]
    assert user.split() == ["0", "root", "/app", "/root", f"{MINE}-view"]
    assert "CANARY" not in variables
    assert SECRET not in variables
    assert {"AGENTENV_SANDBOX", "HOME", "PATH", "LANG"} <= set(variables.split())
    assert folders == "done"
    assert not {"shadow", "ssh", "sudoers", "docker", "machine-id"} & set(etc.split())
    assert etc.endswith("root nobody")
    assert python == "True"
    assert {"null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts", "shm", "fd"} <= set(devices.split())
    assert not {"kvm", "mem", "sda", "vda", "net", "fuse", "loop0"} & set(devices.split())
    assert devices.endswith("writable")
    assert terminal.startswith("/dev/pts/")


SUDO_CALLS = {
    "sudo -E -n -u root echo x": "x",
    "sudo printf '%s|' 'a b' '$HOME' '\"' sudo": 'a b|$HOME|"|sudo|',
    "sudo A=1 B='x y' sh -c 'echo $A $B'": "1 x y",
    "sudo -H -- env | grep -c ^HOME=/root": "1",
    "sudo --user=root id -u": "0",
    "/usr/bin/sudo id -u" if Path("/usr/bin/sudo").exists() else "sudo id -u": "0",
    "sudo -v && echo fine": "fine",
    "sudo false; echo $?": "1",
    "sudo -u nobody id; echo $?": "sudo: this place has one user, root; it can't become nobody",
    "echo in | sudo cat": "in",
    "sudo -i id -un": "root",
    "sudo": "sudo: no command given",
}


def test_a06_sudo_runs_its_arguments_and_changes_none_of_them(here: World) -> None:
    answers = asyncio.run(ask(here.provider(), *SUDO_CALLS))
    for answer, (call, expected) in zip(answers, SUDO_CALLS.items(), strict=True):
        assert expected in answer.splitlines(), call


def with_environ(here: World, **variables: str) -> LocalProvider:
    provider = here.provider()
    kept = {name: value for name, value in os.environ.items() if "proxy" not in name.lower() and "CERT" not in name}
    provider._environ = {**kept, "HOME": str(here.home), "AGENT_ENV_LOCAL_SANDBOX_DIR": str(here.work), **variables}
    return provider


def test_proxy_and_certificates_reach_the_places_that_may_use_the_network_and_no_other(here: World) -> None:
    bundle = here.home / "company.pem"
    bundle.write_text("a certificate")
    bundle.chmod(0o600)
    provider = with_environ(
        here, HTTPS_PROXY="http://proxy.example:3128", http_proxy="http://127.0.0.1:3128", no_proxy="localhost", SSL_CERT_FILE=str(bundle)
    )
    script = 'echo "$HTTPS_PROXY|$no_proxy|$http_proxy|$SSL_CERT_FILE|$(cat "$SSL_CERT_FILE" 2>/dev/null)"'
    (may,) = asyncio.run(ask(provider, script))
    (may_not,) = asyncio.run(ask(provider, script, network=NetworkPolicy(mode=NetworkMode.NONE)))
    proxy = "http://127.0.0.1:3128" if provider.machine.slirp is None else ""  # a loopback of the machine is none of the place's
    assert may == f"http://proxy.example:3128|localhost|{proxy}|/etc/agentenv/company.pem|a certificate"
    assert may_not == "||||"


def test_the_environment_of_the_spec_is_added_byte_for_byte(here: World) -> None:
    value = "a 'b' \"c\" $(d)\n/app sudo"
    (answer,) = asyncio.run(ask(here.provider(), 'printf %s "$GIVEN"', env={"GIVEN": value}))
    assert answer == value


def test_the_running_interpreter_is_shown_where_the_machine_has_none(here: World) -> None:
    provider = here.provider()
    base = Path(sys.base_prefix)
    provider._known_machine = replace(probe.survey(), python=base)
    found, prefix = asyncio.run(ask(provider, "command -v python3", "python3 -c 'import sys, json, ssl; print(sys.prefix)'"))
    assert found == "/opt/python/bin/python3"
    assert prefix == "/opt/python"


def test_the_interpreter_of_the_machine_counts_only_when_it_is_new_enough_and_below_usr(tmp_path: Path) -> None:
    usr, running = tmp_path / "usr", tmp_path / "running"
    (usr / "bin").mkdir(parents=True)
    (running / "bin").mkdir(parents=True)
    assert probe.python_for_inside(usr, running)[0] == running
    (usr / "bin/python3.8").touch()
    (usr / "bin/python3").symlink_to("python3.8")
    assert probe.python_for_inside(usr, running)[0] == running
    (usr / "bin/python3").unlink()
    (usr / "bin/python3.12").touch()
    (usr / "bin/python3").symlink_to("python3.12")
    assert probe.python_for_inside(usr, running) == (None, "/usr/bin/python3 is 3.12")


def test_doctor_is_told_every_part_with_a_hint_for_what_is_missing() -> None:
    findings = examine()
    assert {finding.name for finding in findings} >= {"user", "user namespaces", "bubblewrap", "outbound network", "control groups"}
    assert all(finding.detail for finding in findings)
    nothing = probe.Machine(is_root=False, user_namespaces="user.max_user_namespaces is 0", slirp_problem="slirp4netns is not installed")
    engine = probe.Finding("container engine", False, "no engine answers", "start Docker")
    missing = {finding.name: finding for finding in probe.findings(nothing, engine)}
    assert not missing["confined places"].ok
    assert "--unsafe-host" in missing["confined places"].hint
    assert "start Docker" in missing["confined places"].hint
    assert "slirp4netns" in missing["outbound network"].hint
    assert "its sockets' names" in missing["outbound network"].hint
    helped = {finding.name: finding for finding in probe.findings(nothing, probe.Finding("container engine", True, "an engine"))}
    assert helped["confined places"].ok


def test_where_nobody_may_make_user_namespaces_bubblewrap_does_not_help_either() -> None:
    say = "from agent_env.sandboxes.confined.probe import survey; m = survey(); print(m.user_namespaces, m.for_nobody, m.can_confine)"
    script = 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$0" -c "$1"'
    nested = ["unshare", "--user", "--map-root-user", "sh", "-c", script, sys.executable, say]
    if subprocess.run([*nested[:3], "true"], check=False).returncode:
        pytest.skip("agentenv-capability-missing: user_namespaces")
    done = subprocess.run(nested, capture_output=True, text=True, check=True, timeout=within(20))
    assert done.stdout == "user.max_user_namespaces is 0 True False\n"


FILTER = """
import ctypes, platform, struct
number = {"x86_64": 272, "aarch64": 97}[platform.machine()]
steps = (0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7FFF0000)
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
program = struct.pack("HxxxxxxP", len(steps), ctypes.addressof(code))
libc = ctypes.CDLL(None)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, program, 0, 0) == 0
"""
"""Has the kernel refuse `unshare` with EPERM (SECCOMP_RET_ERRNO), and nothing else, as Docker's default profile does."""


def test_where_a_filter_of_system_calls_forbids_user_namespaces_a_run_is_refused_with_every_remedy(tmp_path: Path) -> None:
    run = "from agent_env.cli.boundary import run; raise SystemExit(run(['run', 'hello', '--dry-run']))"
    environ = {**os.environ, "XDG_STATE_HOME": str(tmp_path), "DOCKER_HOST": f"unix://{tmp_path}/none"}
    done = subprocess.run(
        [sys.executable, "-c", FILTER + run], capture_output=True, text=True, check=False, env=environ, timeout=within(20)
    )
    assert done.returncode == 2
    for said in ("a filter of system calls forbids them", "install bubblewrap", "start a container engine", "--unsafe-host"):
        assert said in done.stderr


async def tried(world: World) -> probe.Finding:
    return await trial()


@pytest.mark.parametrize("way", WAYS[:2])
def test_a_trial_place_proves_that_this_machine_can_confine(way: str) -> None:
    finding = act(way, tried)
    assert finding.ok, finding
    assert finding.detail.startswith("made in ")
