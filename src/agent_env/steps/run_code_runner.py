"""Runs one entry point of a task's script, in the place. Started as `python3 runner.py FOLDER ENTRYPOINT SCRIPT`, it needs nothing but
Python 3.9, and the framework never imports it. A result is written whole or not at all.
"""

from __future__ import annotations

import importlib.util
import io
import json
import os
import sys
import types
from collections.abc import Awaitable
from pathlib import Path

OLDEST_PYTHON = (3, 9)
REFUSED = 65
"""Exit code when there can be no result; the reason is in `output.refused`."""


def main(folder: Path, entrypoint: str, script: str) -> int:
    """Loads the script, calls its entry point with the input, writes the result. Returns the exit code."""
    if tuple(sys.version_info[:2]) < OLDEST_PYTHON:
        return refuse(folder, "python3 is " + sys.version.split()[0] + "; 3.9 or newer is needed")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # what was printed before a kill is seen
    given = json.loads((folder / "input.json").read_text(encoding="utf-8"))
    function = getattr(load(folder, folder / script), entrypoint, None)
    if not callable(function):
        return refuse(folder, f"{script} has no function {entrypoint!r}")
    result = function(given)
    if hasattr(result, "__await__"):
        import asyncio

        result = asyncio.run(settled(result))
    return write_result(folder, result)


async def settled(result: Awaitable[object]) -> object:
    """What an `async def` entry point returns in the end."""
    return await result


def load(folder: Path, script: Path) -> types.ModuleType:
    """The script as a module. A nested one lies in a package, so that its relative imports work."""
    sys.path[:0] = list(dict.fromkeys([str(script.parent), str(folder)]))
    name = "agent_env_user_script"
    if script.parent != folder:
        package = types.ModuleType("agent_env_user_pkg")
        package.__path__ = [str(script.parent)]
        sys.modules[package.__name__] = package
        name = f"{package.__name__}.{script.stem}"
    spec = importlib.util.spec_from_file_location(name, script)
    if spec is None or spec.loader is None:
        raise ImportError(f"{script} can't be loaded as Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def write_result(folder: Path, result: object) -> int:
    """Writes the result in one move."""
    try:
        text = json.dumps(result, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        return refuse(folder, f"the result is not JSON: {error}")
    partial = folder / f".output.{os.getpid()}"
    partial.write_text(text, encoding="utf-8")
    partial.replace(folder / "output.json")
    return 0


def refuse(folder: Path, reason: str) -> int:
    """Says why there is no result."""
    (folder / "output.refused").write_text(reason, encoding="utf-8", errors="backslashreplace")
    return REFUSED


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3]))
