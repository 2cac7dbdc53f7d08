"""Off Linux: everything imports, what needs no place works, and what needs one says what to do. The platform is faked in a subprocess."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from agent_env import host
from tests.portability.mac import ROOT, Mac

IMPORT_ALL = """
import importlib, pkgutil, sys, agent_env
assert sys.platform == "darwin", sys.platform
names = [found.name for found in pkgutil.walk_packages(agent_env.__path__, "agent_env.")]
for name in names:
    if not name.endswith(("__main__", "migrations.env")):
        importlib.import_module(name)
assert len(names) > 250, len(names)
"""

BOX = '[{"id": "box", "type": "deploy_sandbox", "sandbox_name": "box", "sandbox_mode": "vm"}]'

BOTH_WAYS = """
import os, signal, subprocess, sys
from agent_env import host
child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"])
started = host.start_time(child.pid)
assert started and host.start_time(child.pid) == started
assert not host.send_signal(child.pid, started + 1)
assert not host.wait_gone(child.pid, started, 0.0)
assert host.wait_gone(child.pid, started + 1, 0.0)
assert host.send_signal(child.pid, started, signal.SIGKILL)
assert host.wait_gone(child.pid, started, 20.0)
assert host.start_time(child.pid) is None, "a zombie is no process"
child.wait()
assert not host.send_signal(child.pid, started)
assert host.start_time(2**22 + 1) is None
assert host.boot_id() and host.boot_id() == host.boot_id()
assert host.boot_seconds() > 0
print(host.IS_LINUX, host.system_name())
"""


def test_the_whole_package_imports(mac: Mac) -> None:
    done = mac.python("-c", IMPORT_ALL)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("--help",),
        ("--version",),
        ("config", "show"),
        ("bundle", "check", "hello"),
        ("bundle", "new", "mine"),
        ("artifact", "list"),
        ("runs", "list"),
        ("plugin", "list"),
        ("provider", "list"),
        ("task", "create", "box.json", "--id", "box"),
        ("gc",),
    ],
    ids=" ".join,
)
def test_a_command_that_needs_no_place_works(mac: Mac, words: tuple[str, ...]) -> None:
    (mac.folder / "box.json").write_text(BOX)
    done = mac.agent_env(*words)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr


def test_a_task_is_stored_and_checked_where_it_could_not_run(mac: Mac) -> None:
    (mac.folder / "box.json").write_text(BOX)
    created, validated = (mac.agent_env("task", *words) for words in (("create", "box.json", "--id", "box"), ("validate", "--id", "box")))
    assert (created.returncode, validated.returncode) == (0, 0), created.stderr + validated.stderr
    assert "need Linux; this is macOS" in " ".join(validated.stderr.split())


@pytest.mark.parametrize("words", [("run", "hello"), ("run", "hello", "--dry-run")], ids=" ".join)
def test_what_needs_a_place_says_what_is_missing_and_what_to_do(mac: Mac, words: tuple[str, ...]) -> None:
    done = mac.agent_env(*words)
    assert done.returncode != 0
    said = " ".join((done.stdout + done.stderr).split())
    assert "need Linux; this is macOS" in said
    assert "no container engine answers at unix:///nowhere/docker.sock" in said
    assert "AttributeError" not in said


def test_the_bare_host_is_refused_too(mac: Mac) -> None:
    done = mac.agent_env("run", "hello", "--unsafe-host")
    assert done.returncode != 0
    assert "'unsafe_host' needs Linux; this is macOS" in " ".join(done.stderr.split())


def test_doctor_says_that_an_engine_is_all_that_is_missing(mac: Mac) -> None:
    done = mac.agent_env("doctor", "--json")
    assert done.returncode == 1, done.stderr
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert [name for name, check in checks.items() if check["needed"] and not check["ok"]] == ["confined places"]
    assert "macOS" in checks["confined places"]["detail"]
    assert "start a container engine" in checks["confined places"]["hint"]


@pytest.mark.timeout(600)
# Documents are pure data, which asks no system for anything.
@pytest.mark.parametrize("rooms", [("words", "config"), ("stores",), pytest.param(("documents",), marks=pytest.mark.slow)], ids=" ".join)
def test_the_unit_tests_of_rooms_that_need_no_place_pass(mac: Mac, rooms: tuple[str, ...]) -> None:
    # A PostgreSQL server of this machine's own is started through what a Mac lacks; its clients are the same everywhere.
    told = ["-q", "-x", "-k", "not postgres", *(f"tests/{room}" for room in rooms)]
    done = mac.python("-m", "pytest", *told, seconds=280, cwd=ROOT)
    assert done.returncode == 0, done.stdout[-4000:]


@pytest.mark.parametrize("system", ["macOS", "Linux"])
def test_a_process_is_told_by_its_number_and_its_start_alone(mac: Mac, system: str) -> None:
    environment = {} if system == "macOS" else {"PYTHONPATH": ""}
    done = Mac(mac.folder, variables=environment).python("-c", BOTH_WAYS)
    assert (done.returncode, done.stdout.split()) == (0, [str(system == "Linux"), system]), done.stderr


@pytest.mark.parametrize("system", ["this one", "another"])
def test_a_socket_at_a_long_path_is_bound_and_reached(system: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "IS_LINUX", system == "this one" and host.IS_LINUX)
    with tempfile.TemporaryDirectory() as short:
        path = Path(short, *["a folder with a long name, as some people have them"] * 4, "socket")
        path.parent.mkdir(parents=True)
        with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as caller:
            with host.socket_address(path) as address:
                listener.bind(address)
            listener.listen(1)
            with host.socket_address(path) as address:
                caller.connect(address)
            assert path.is_socket()
        assert len(os.fspath(path)) > 150
        with pytest.raises(FileNotFoundError), host.socket_address(path.parent / "absent" / "socket"):
            pass


def test_a_signal_reaches_no_process_that_only_has_the_number() -> None:
    child = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    try:
        started = host.start_time(child.pid)
        assert started is not None
        assert not host.send_signal(child.pid, started - 1, signal.SIGKILL)
        assert child.poll() is None
    finally:
        child.kill()
        child.wait()
        assert child.stdin is not None
        child.stdin.close()
