"""Whether this machine can stack a place's own files over an image's tree, found out by doing it, once a boot."""

from __future__ import annotations

import os
import secrets
import subprocess
from pathlib import Path

from agent_env.clock import SystemClock
from agent_env.defaults import Limits
from agent_env.places.helper import binary_path
from agent_env.sandboxes.confined.processes import boot_id
from agent_env.sandboxes.confined.removal import remove_tree
from agent_env.sandboxes.rootfs.top import TOP, WORK


def problem(work_root: Path, tools: Path, map_options: list[str], limits: Limits) -> str:
    """Why it can't; empty when it can. What was found is remembered in `tools` until the next boot.

    Args:
        work_root: Where places keep their own files.
        tools: A private folder for what all places share.
        map_options: Options of `helper confine` that say who owns what inside.
    """
    known = tools / f"stacking-{boot_id()}"
    try:
        return known.read_text()
    except FileNotFoundError:
        pass
    folder = work_root / f".stacking-{secrets.token_hex(6)}"
    try:
        for name in (TOP, WORK, "tree"):
            (folder / name).mkdir(parents=True, mode=0o700)
        said = _tried(folder, map_options, limits)
    except OSError as error:
        said = str(error)
    finally:
        remove_tree(folder, until=SystemClock().monotonic() + limits.cleanup_seconds)
    for old in tools.glob("stacking-*"):
        old.unlink(missing_ok=True)
    fresh = known.with_name(f".stacking-{secrets.token_hex(6)}")
    fresh.write_text(said)
    fresh.replace(known)
    return said


def _tried(folder: Path, map_options: list[str], limits: Limits) -> str:
    """Has a place made that ends at once; what matters is how its making went."""
    reader, writer = os.pipe()
    helper = str(binary_path())
    own = [helper, "confine", "--report-fd", str(writer), *map_options, "--overlay", str(folder / "tree"), str(folder)]
    view = ["--unshare-user", "--unshare-pid", "--ro-bind", helper, "/helper", "--", "/helper"]
    with open(reader) as report:
        try:
            quiet = subprocess.DEVNULL
            subprocess.run(
                [*own, *view], pass_fds=[writer], stdin=quiet, stdout=quiet, stderr=quiet, timeout=limits.connect_seconds, check=False
            )
        except subprocess.TimeoutExpired:
            return "it takes too long"
        finally:
            os.close(writer)
        said = report.read().strip()
    return "" if said.startswith("ok ") else said.removeprefix("error ") or "it can't be tried"
