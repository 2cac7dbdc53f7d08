"""The plug-in surface: what other people's providers are written against, read from the sources by griffe.

python -m tests.providers.surface      writes tests/providers/surface.json again
"""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import griffe

ROOT = Path(__file__).parents[2]
RECORD = Path(__file__).with_name("surface.json")
MODULES = (
    "agent_env.sandboxes.contract",
    "agent_env.sandboxes.remote",
    "agent_env.sandboxes.registry",
    "agent_env.sandboxes.conformance.bench",
    "agent_env.places.place",
    "agent_env.places.endpoint",
    "agent_env.places.placement",
    "agent_env.places.helper.protocol",
    "agent_env.documents.network",
    "agent_env.errors",
    "agent_env.waiting",
)
ONLY = {
    "agent_env.sandboxes.registry": {"GROUP", "names", "provider"},
    "agent_env.places.helper.protocol": {"HelperConfig"},
    "agent_env.sandboxes.conformance.bench": {"Subject", "MakeProvider"},
}
"""Modules of which plug-ins need these names alone."""
IMPLEMENTED = {f"agent_env.sandboxes.contract.{name}" for name in ("Provider", "Sandbox", "ByteStream", "ProviderFactory")}
"""What plug-ins implement: a member that is new there is missing in theirs."""


def surface(source: Path = ROOT / "src") -> dict[str, str]:
    """Path of each public name → its signature, read from a folder of sources; nothing is imported."""
    found: dict[str, str] = {}
    with uncollected():
        for name in MODULES:
            file = source / f"{name.replace('.', '/')}.py"
            found |= dict(_below(griffe.visit(name, filepath=file, code=file.read_text()), ONLY.get(name)))
    return dict(sorted(found.items()))


@contextmanager
def uncollected() -> Iterator[None]:
    """Python 3.11 gives up parsing when a finalizer that comes in between parses too, as one does that shows a traceback."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _below(owner: Any, only: set[str] | None = None) -> Iterator[tuple[str, str]]:
    for name, member in owner.members.items():
        private = name.startswith("_") and name != "__call__"
        if private or member.is_alias or (only is not None and name not in only):
            continue
        if member.is_class:
            yield member.path, f"class({', '.join(str(base) for base in member.bases)})"
            yield from _below(member)
        elif member.is_function:
            yield member.path, _signature(member)
        elif member.is_attribute:
            default = "" if member.value is None else f" = {member.value}"
            yield member.path, f"{member.annotation or ''}{default}".strip()


def _signature(function: Any) -> str:
    parameters = []
    for parameter in function.parameters:
        annotation = f": {parameter.annotation}" if parameter.annotation is not None else ""
        default = f" = {parameter.default}" if parameter.default is not None else ""
        parameters.append(f"{parameter.kind.value if parameter.kind else ''} {parameter.name}{annotation}{default}")
    return f"({', '.join(parameters)}) -> {function.returns}"


def breaks(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """What would break a plug-in that was written against the earlier surface, as sentences."""
    gone = [f"{path} is gone: {before[path]}" for path in before if path not in now]
    changed = [f"{path} was {before[path]} and is {now[path]}" for path in before if path in now and now[path] != before[path]]
    new = [path for path in now if path not in before]
    owed = [f"{path} is new in what plug-ins implement: {now[path]}" for path in new if path.rpartition(".")[0] in IMPLEMENTED]
    return [*gone, *changed, *owed]


def recorded() -> tuple[int, dict[str, str]]:
    """The version and the surface that were recorded."""
    data = json.loads(RECORD.read_text())
    return data["version"], data["surface"]


def version_of(found: Mapping[str, str]) -> int:
    """`SURFACE_VERSION` as the sources have it."""
    return int(found["agent_env.sandboxes.contract.SURFACE_VERSION"].removeprefix("="))


def main() -> None:
    """Records the surface of the sources."""
    found = surface()
    RECORD.write_text(json.dumps({"version": version_of(found), "surface": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
