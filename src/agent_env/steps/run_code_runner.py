"""Runs one entry point of a task's script, in the place. Started as `python3 -I -c THIS FOLDER ENTRYPOINT SCRIPT DIGEST`, it needs nothing
but Python 3.9, and the framework never imports it. A result is written whole or not at all.

What an earlier command left running has the same rights. So first of all this process shuts others out, while they are held still; what
was staged is read once, compared with the digest, and used from memory; and the result goes through a pipe that nobody else can open.
Where there is no such pipe (`AGENTENV_RESULT`), it goes into a file, and nothing of this is promised.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.machinery
import importlib.util
import io
import json
import os
import site
import sys
import types
from collections.abc import Awaitable, Mapping, Sequence
from pathlib import Path

OLDEST_PYTHON = (3, 9)
REFUSED = 65
"""Exit code when there can be no result; the reason is in `output.refused`."""


NOT_DUMPABLE = 4, 0
"""(kernel) `prctl(PR_SET_DUMPABLE, 0)`: no other process may open this one's memory or descriptors."""
PIPE = int(os.environ.pop("AGENTENV_RESULT", "-1"))


def main(folder: Path, entrypoint: str, script: str, digest: str = "") -> int:
    """Loads the script, calls its entry point with the input, writes the result. Returns the exit code."""
    staged = read_staged(folder)
    if PIPE >= 0:
        shut_out()
    if digest and digest != digest_of({str(path.relative_to(folder)): data for path, data in staged.items()}):
        return refuse(folder, "what was staged for it was changed in the place before it began")
    if tuple(sys.version_info[:2]) < OLDEST_PYTHON:
        return refuse(folder, "python3 is " + sys.version.split()[0] + "; 3.9 or newer is needed")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # what was printed before a kill is seen
    sys.path[:0] = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry and sys.flags.ignore_environment]
    sys.path += user_packages()
    sys.excepthook = functools.partial(print_below, folder)
    given = json.loads(staged[folder / "input.json"])
    function = getattr(load(folder, folder / script, staged), entrypoint, None)
    if not callable(function):
        return refuse(folder, f"{script} has no function {entrypoint!r}")
    result = function(given)
    if hasattr(result, "__await__"):
        import asyncio

        result = asyncio.run(settled(result))
    return write_result(folder, result)


def print_below(folder: Path, kind: type[BaseException], error: BaseException, trace: types.TracebackType | None) -> None:
    """Prints an uncaught error as Python does, from the first line of what was staged: what leads there is this file's own."""
    own, below = print_below.__code__.co_filename, trace
    while below is not None and ((file := below.tb_frame.f_code.co_filename) == own or folder not in Path(file).parents):
        below = below.tb_next
    if below is not None or isinstance(error, SyntaxError):
        error, trace = error.with_traceback(below), below
    sys.__excepthook__(kind, error, trace)


def shut_out() -> None:
    """Closes this process to all others of the place, and says so; before that, the helper lets none of them run."""
    import ctypes

    ctypes.CDLL(None).prctl(*NOT_DUMPABLE, 0, 0, 0)
    os.set_inheritable(PIPE, False)
    os.write(PIPE, b"+")


def read_staged(folder: Path) -> dict[Path, bytes]:
    """Everything in the folder. Links and what else is no file were not staged."""
    found = {}
    for top, _, names in os.walk(folder):
        for name in names:
            path = Path(top) / name
            if path.is_file() and not path.is_symlink():
                found[path] = path.read_bytes()
    return found


def digest_of(files: Mapping[str, bytes]) -> str:
    """One digest for names and contents."""
    whole = hashlib.sha256()
    for name in sorted(files):
        whole.update(f"{len(name.encode())} {len(files[name])} ".encode() + name.encode() + files[name])
    return whole.hexdigest()


class Loader(importlib.machinery.SourceFileLoader):
    """Loads a module from what was read, never again from the folder or from a cache beside it."""

    def __init__(self, name: str, path: str, staged: Mapping[Path, bytes]) -> None:
        super().__init__(name, path)
        self.staged = staged

    def get_data(self, path: str) -> bytes:
        """The source as it was staged."""
        try:
            return self.staged[Path(path)]
        except KeyError:
            raise OSError(f"{path} was not staged") from None

    def path_stats(self, path: str) -> Mapping[str, object]:
        """None: there is no compiled form."""
        raise OSError(path)


class Finder:
    """Finds modules among what was staged, before any other place but the interpreter itself."""

    def __init__(self, folders: Sequence[Path], staged: Mapping[Path, bytes]) -> None:
        self.folders = folders
        self.staged = staged

    def find_spec(self, name: str, path: Sequence[str] | None, *_: object) -> importlib.machinery.ModuleSpec | None:
        """The module, package or plain folder of that name."""
        last = name.rpartition(".")[2]
        folders = self.folders if path is None else [Path(entry) for entry in path]
        for folder in folders:
            for file, below in ((folder / last / "__init__.py", [str(folder / last)]), (folder / f"{last}.py", None)):
                if file in self.staged:
                    loader = Loader(name, str(file), self.staged)
                    return importlib.util.spec_from_file_location(name, file, loader=loader, submodule_search_locations=below)
        plain = [str(folder / last) for folder in folders if any(folder / last in file.parents for file in self.staged)]
        if not plain:
            return None
        spec = importlib.machinery.ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = plain
        return spec


def user_packages() -> list[str]:
    """Where `pip install` puts packages when it can't write to the system's.

    Python itself would put it before the system's packages and run its `.pth` files and `usercustomize`. Behind them it replaces nothing
    and starts nothing, and what was installed is still found.
    """
    folder = site.getusersitepackages()
    return [folder] if Path(folder).is_dir() and folder not in sys.path else []


async def settled(result: Awaitable[object]) -> object:
    """What an `async def` entry point returns in the end."""
    return await result


def load(folder: Path, script: Path, staged: Mapping[Path, bytes]) -> types.ModuleType:
    """The script as a module. A nested one lies in a package, so that its relative imports work."""
    finder = Finder(list(dict.fromkeys([script.parent, folder])), staged)
    sys.meta_path.insert(len(sys.meta_path) - 1, finder)  # the last one looks along sys.path
    name = "agent_env_user_script"
    if script.parent != folder:
        package = types.ModuleType("agent_env_user_pkg")
        package.__path__ = [str(script.parent)]
        sys.modules[package.__name__] = package
        name = f"{package.__name__}.{script.stem}"
    spec = importlib.util.spec_from_file_location(name, script, loader=Loader(name, str(script), staged))
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
    if PIPE >= 0:
        tell("=" + text)
        return 0
    partial = folder / f".output.{os.getpid()}"
    partial.write_text(text, encoding="utf-8")
    partial.replace(folder / "output.json")
    return 0


def tell(text: str) -> None:
    """Sends what there is to say through the pipe; what a script left running must not add to it."""
    with open(PIPE, "wb") as pipe:
        pipe.write(text.encode("utf-8", "backslashreplace"))


def refuse(folder: Path, reason: str) -> int:
    """Says why there is no result."""
    if PIPE >= 0:
        tell("!" + reason)
        return REFUSED
    (folder / "output.refused").write_text(reason, encoding="utf-8", errors="backslashreplace")
    return REFUSED


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *sys.argv[2:5]))
