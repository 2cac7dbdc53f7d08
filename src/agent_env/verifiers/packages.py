"""Packages for a verifier's code in a place: wheels that were fetched here, unpacked there once, whatever that place has installed.

The published verifiers speak MCP with the official package of the first generation, so that is what they find.
"""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from agent_env.errors import LaunchError, UnsupportedError
from agent_env.ids import fs_safe
from agent_env.places import ROOT_USER, Command, Missing, Place, Upload

if TYPE_CHECKING:
    from agent_env.images import Wheelhouse
    from agent_env.steps.contract import Run

KIT = ("httpx>=0.27,<1", "mcp>=1.25,<2", "pydantic>=2.12,<3")
OLDEST_PYTHON = (3, 10)
"""Of the packages above."""
_FOLDER = PurePosixPath("/opt/agent-env/packages")
_ASK = """import json, platform, sys
print(json.dumps([list(sys.version_info[:2]), platform.machine(), platform.libc_ver()[0] or "musl"]))"""
_UNPACK = """import os, shutil, sys, zipfile
folder = sys.argv[1]
made = folder + ".made"
for name in sorted(os.listdir(folder)):
    with zipfile.ZipFile(os.path.join(folder, name)) as wheel:
        for member in wheel.namelist():
            head, _, rest = member.partition("/")
            kind, _, below = rest.partition("/")
            if not head.endswith(".data"):
                wheel.extract(member, made)
            elif kind in ("purelib", "platlib") and below and not member.endswith("/"):
                target = os.path.join(made, below)
                os.makedirs(os.path.dirname(target), exist_ok=True)
                with wheel.open(member) as source, open(target, "wb") as out:
                    shutil.copyfileobj(source, out)
shutil.rmtree(folder)
try:
    os.rename(made, sys.argv[2])
except OSError:  # another verifier was quicker
    shutil.rmtree(made)
"""
_MACHINES = {"x86_64": "linux/amd64", "aarch64": "linux/arm64"}


async def packages_for(place: Place, run: Run, script: bytes) -> str | None:
    """The folder in the place that has what a script imports beside the standard library; None when that is nothing.

    Raises:
        LaunchError: The place has no python3.
        UnsupportedError: Its Python is too old, or of a machine that no wheels are fetched for.
        TransferError: The packages are not here yet, and no index can be reached.
    """
    if not _needs_packages(script):
        return None
    version, machine, libc = await _python_of(place, run)
    if version < OLDEST_PYTHON:
        shown = ".".join(map(str, version))
        raise UnsupportedError(f"the packages of verifiers need Python 3.10 or newer, and the place has {shown}", concerns=place.id)
    platform = _MACHINES.get(machine)
    if platform is None:
        raise UnsupportedError(f"there are no packages of verifiers for {machine}", concerns=place.id)
    wheelhouse: Wheelhouse = run.wheelhouse()
    run.progress("fetching the packages of verifiers")
    wheels = await wheelhouse.fetch(KIT, python=".".join(map(str, version)), platform=platform, libc=libc)
    target = _FOLDER / wheels.folder.name
    if isinstance((await place.stat([target], follow=False))[target], Missing):
        await _unpack(place, run, [wheels.folder / name for name in wheels.names], target)
    return str(target)


def _needs_packages(script: bytes) -> bool:
    """Whether anything outside of the standard library is imported; a script that can't be read says so when it runs."""
    try:
        tree = ast.parse(script)
    except (SyntaxError, ValueError):
        return False
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.add((node.module or "").partition(".")[0])
    return bool(names - sys.stdlib_module_names)


async def _python_of(place: Place, run: Run) -> tuple[tuple[int, int], str, str]:
    try:
        done = await place.run(Command(["python3", "-I", "-c", _ASK], attempt=run.attempt_id, timeout_seconds=run.limits.connect_seconds))
    except LaunchError as error:
        hint = "verifiers need python3 (3.10 or newer) in the environment's machine"
        raise LaunchError(f"the verifier could not start python3: {error.message}", concerns=place.id, hint=hint) from error
    if not done.ok:
        raise LaunchError(f"python3 does not start: {done.stderr.decode('utf-8', 'replace')[-200:]}", concerns=place.id)
    (major, minor), machine, libc = json.loads(done.stdout)
    return (major, minor), machine, libc


async def _unpack(place: Place, run: Run, wheels: list[Path], target: PurePosixPath) -> None:
    """In one move, so that nobody finds half of it; what a cut attempt left is under its own name."""
    folder = target.with_name(f".{target.name}-{fs_safe(run.attempt_id)}")
    uploads = [Upload(_FOLDER, None, 0o755), Upload(folder, None, 0o700), *(Upload(folder / path.name, path, 0o600) for path in wheels)]
    await place.put(uploads, owner="0:0")
    command = ["python3", "-I", "-c", _UNPACK, str(folder), str(target)]
    done = await place.run(Command(command, user=ROOT_USER, attempt=run.attempt_id, timeout_seconds=run.limits.transfer_seconds))
    if not done.ok:
        said = done.stderr.decode("utf-8", "replace").strip()[-500:]
        raise LaunchError(f"the packages of verifiers can't be unpacked in the place: {said}", concerns=place.id)
