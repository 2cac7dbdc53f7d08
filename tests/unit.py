"""Which tests are unit tests: those that run in the test's own process, on what it makes itself.

A test is none where one of its fixtures gives a container engine or a database server, or where it starts other processes: where it, a
fixture of its, or what they call of the tests' own names `subprocess`, `multiprocessing` or a provider of sandboxes. Folders of whole
scenes have none.
`make unit` runs them, and a folder of scenes is not even collected then: `python -m tests.unit -n WORKERS` fails where a test does, and
where they all took clearly more of the processors than two cores have in a minute, whatever else the machine is doing.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import cache
from inspect import isclass, isfunction, ismodule, unwrap
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

SELECTED = "unit and not slow"
"""What pytest is asked for."""
PROMISED = 2 * 60.0
"""Seconds of a core: unit tests take less than a minute in all, on two cores."""
CLEARLY = 1.25
"""A machine that is busy counts the same work higher."""
SCENES = frozenset(
    {
        *("acceptance", "broker", "agent_steps", "chaos", "cli", "containers", "docs", "environment_steps"),
        *("environments", "gateway", "helper", "house", "images", "interop", "keeper"),
        *("kits", "portability", "providers", "rootfs", "sandboxes"),
    }
)
"""Folders whose subject is a process, a container, an image or a command."""
GIVEN = frozenset({"docker", "podman", "postgres_server", "postgres_url"})
"""Fixtures that stand for a server beside the test. What asks for one of them has it among its fixtures as well."""
SERVERS = frozenset({"postgres"})
"""Values of parameters that stand for one."""
PROCESSES = ("subprocess", "multiprocessing", "agent_env.sandboxes", "agent_env.containers", "agent_env.keeper")
"""Modules that start processes, or whose parts do."""
HERE = Path(__file__).parent


def is_scene(path: Path) -> bool:
    """Whether this is a folder of scenes, or something in one."""
    return path.is_relative_to(HERE) and bool(SCENES & {*path.relative_to(HERE).parts[:1]})


def is_unit(item: pytest.Item) -> bool:
    """Whether a test is a unit test."""
    if not isinstance(item, pytest.Function) or is_scene(item.path):
        return False
    values = item.callspec.params.values() if hasattr(item, "callspec") else ()
    if GIVEN & {*item.fixturenames} or SERVERS & {value for value in values if isinstance(value, str)}:
        return False
    fixtures = [each.func for name in item.fixturenames for each in item._fixtureinfo.name2fixturedefs.get(name, ())]
    return not _starts_processes([item.function, *fixtures])


def _starts_processes(functions: list[Any]) -> bool:
    waiting, seen = [unwrap(each) for each in functions], set[Any]()
    while waiting:
        each = waiting.pop()
        if _home(each).startswith(PROCESSES):
            return True
        if each not in seen:
            seen.add(each)
            waiting += _named(each)
    return False


@cache
def _named(thing: Any) -> tuple[Any, ...]:
    """What a function or class names: functions and classes of the tests' own, and what starts processes."""
    functions = [unwrap(each) for each in vars(thing).values() if callable(each)] if isclass(thing) else [unwrap(thing)]
    bases = [each for each in thing.__mro__[1:] if _is_ours(each)] if isclass(thing) else []
    found = [each for function in functions if isfunction(function) for each in _values(function.__code__, function.__globals__)]
    return tuple(each for each in (*bases, *found) if _is_ours(each) or _home(each).startswith(PROCESSES))


def _values(code: CodeType, known: dict[str, Any]) -> Iterator[Any]:
    for name in code.co_names:
        value = known.get(name)
        yield value
        if ismodule(value) and value.__name__.startswith("tests."):
            yield from (vars(value).get(each) for each in code.co_names)
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _values(each, known)


def _home(thing: Any) -> str:
    return thing.__name__ if ismodule(thing) else str(getattr(thing, "__module__", ""))


def _is_ours(thing: Any) -> bool:
    if not (isfunction(thing) or isclass(thing)):
        return False
    return str(getattr(sys.modules.get(thing.__module__), "__file__", "")).startswith(f"{HERE}/")


def main() -> int:
    """Runs the unit tests; returns the exit code."""
    begun = time.monotonic()
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-m", SELECTED, "--dist", "worksteal", *sys.argv[1:]], check=False)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    taken = used.ru_utime + used.ru_stime
    print(f"{time.monotonic() - begun:.0f} s, {taken:.0f} s of a core; promised are {PROMISED:.0f} s of a core")
    if taken > PROMISED * CLEARLY:
        print("the unit tests no longer keep that: see `--durations=30`", file=sys.stderr)
        return done.returncode or 1
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
