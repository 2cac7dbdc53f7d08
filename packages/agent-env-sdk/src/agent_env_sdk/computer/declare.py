"""Says what a driver class declares, where its own dependencies may not be installed:

    python -m agent_env_sdk.computer.declare FOLDER FILE CLASS

The file is imported, with modules that aren't here replaced by inert ones, and the declaration is printed as JSON:
`{"name", "supports", "platforms": [{"platform", "provides", "tools", "features"}]}`.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .driver import COMPUTER, ComputerDriver
from .platforms import supported


class _Inert(type):
    """A class whose attributes, calls and items are itself: enough to define classes with."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return cls

    def __call__(cls, *_: Any, **__: Any) -> Any:
        return cls

    def __getitem__(cls, _: Any) -> Any:
        return cls


class _Anything(metaclass=_Inert):
    """What a module that isn't here holds."""


class _Absent(types.ModuleType):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__: list[str] = []  # what makes it a package

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything


class _Absences(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds what nobody else did."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None) -> Any:
        del path, target
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Absent(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing is in it."""


def declare(folder: Path, file: str, name: str) -> dict[str, Any]:
    """What the class declares.

    Raises:
        ValueError: There is no such driver class, or it declares no platform.
    """
    sys.path.insert(0, str(folder))
    sys.meta_path.append(_Absences())
    spec = importlib.util.spec_from_file_location("computer_driver", folder / file)
    if spec is None or spec.loader is None:
        raise ValueError(f"{file} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    found = getattr(module, name, None)
    if not (isinstance(found, type) and issubclass(found, ComputerDriver)):
        raise ValueError(f"{file} has no class {name} that derives from ComputerDriver")
    cards = [(platform, found.declaration(platform)) for entry in found.supports for platform in supported(entry)]
    if not cards:
        raise ValueError(f"{name} declares no platform: say @computer_driver(..., supports=[...])")
    platforms = []
    for platform, card in cards:
        extensions = {each.uri: each.params for each in card.capabilities.extensions or []}
        tools = [each.name for each in card.capabilities.tools or []]
        platforms.append({"platform": platform.to_json(), "provides": list(extensions), "tools": tools, "features": extensions[COMPUTER]})
    return {"name": cards[0][1].name, "supports": [dict(entry) for entry in found.supports], "platforms": platforms}


def main(arguments: list[str]) -> int:
    """Prints the declaration, or why there is none."""
    folder, file, name = arguments
    try:
        with contextlib.redirect_stdout(sys.stderr):
            declared = declare(Path(folder), file, name)
    except Exception as error:  # noqa: BLE001 - whatever an author's file does when it is imported
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return 1
    sys.stdout.write(json.dumps(declared) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
