"""Which files of an artifact `run_code` stages, and which of them is the entry. Pure rules, the reference's, with all candidates named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

RESERVED = frozenset({"runner.py", "input.json", "output.json"})
SINGLE = "script.py"
"""The staged name of a single-file script, whatever it is called."""
DEFAULT_ENTRY = "run.py"
_NAMED = 10


@dataclass(frozen=True, slots=True)
class Script:
    """What is staged."""

    entry: str
    """The staged name of the file that has the entry point."""
    files: Mapping[str, str]
    """Staged name → name in the artifact."""
    skipped: tuple[str, ...] = ()
    """Members that are not Python and stay behind."""


@dataclass(frozen=True, slots=True)
class NoScript:
    """Why nothing can be staged."""

    reason: str
    field: str = "script_artifact_id"
    hint: str | None = None


def select_script(names: Sequence[str], *, universe: bool, script_file: str | None) -> Script | NoScript:
    """Chooses.

    Args:
        names: The artifact's files, by relative name.
        universe: It is a folder of files, not a single file.
        script_file: The entry that the step asks for.
    """
    if not universe:
        if script_file is not None:
            return NoScript("script_file is for universes; the artifact is a single file", "script_file", "leave it out")
        return Script(SINGLE, {SINGLE: names[0]}) if names else NoScript("the artifact has no file")
    if not names:
        return NoScript("the universe is empty")
    unsafe = [name for name in names if _is_unsafe(name)]
    if unsafe:
        return NoScript(f"members have unsafe names: {_listed(unsafe)}", hint="relative names without '..' or '~'")
    reserved = sorted(RESERVED.intersection(names))
    if reserved:
        return NoScript(f"members have names that are kept for the runner: {_listed(reserved)}", hint="rename them")
    scripts = [name for name in names if name.endswith(".py")]
    if not scripts:
        return NoScript(f"the universe has no .py member: {_listed(names)}")
    entry = _entry(scripts, script_file)
    if isinstance(entry, NoScript):
        return entry
    return Script(entry, {name: name for name in scripts}, tuple(name for name in names if not name.endswith(".py")))


def _entry(scripts: Sequence[str], script_file: str | None) -> str | NoScript:
    if script_file is not None:
        if not script_file.endswith(".py"):
            return NoScript(f"script_file {script_file!r} is no .py file", "script_file")
        if script_file not in scripts:
            return NoScript(f"script_file {script_file!r} is not in the universe", "script_file", f"it has {_listed(scripts)}")
        return script_file
    if len(scripts) == 1:
        return scripts[0]
    named = [name for name in scripts if PurePosixPath(name).name == DEFAULT_ENTRY]
    if len(named) == 1:
        return named[0]
    if named:
        return NoScript(f"several members are called {DEFAULT_ENTRY}: {_listed(named)}", hint="set script_file")
    return NoScript(f"several .py members and no {DEFAULT_ENTRY}: {_listed(scripts)}", hint="set script_file")


def _is_unsafe(name: str) -> bool:
    return not name or name.startswith(("/", "~")) or "\0" in name or ".." in PurePosixPath(name).parts


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(sorted(names)[:_NAMED])
    return f"{shown} and {len(names) - _NAMED} more" if len(names) > _NAMED else shown
