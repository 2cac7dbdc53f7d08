"""`make demo` on a clean clone: nothing but Python, git and make, no container engine, no account."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(600)
def test_make_demo_on_a_clean_clone_ends_in_a_score_of_one(tmp_path: Path) -> None:
    clone, home, tools = tmp_path / "clone", tmp_path / "home", tmp_path / "bin"
    home.mkdir()
    tools.mkdir()
    tmp_path.chmod(0o755)
    subprocess.run(["git", "clone", "--quiet", "--no-local", "--depth", "1", f"file://{ROOT}", clone], check=True, timeout=60)
    # Only what a bare machine has: no uv, no container engine's client, none of this environment's programs.
    wanted = [
        "git",
        "make",
        "sh",
        "bash",
        "env",
        "dirname",
        "uname",
        "awk",
        "grep",
        "sed",
        "rm",
        "mkdir",
        "cat",
        "ls",
        "ln",
        "cp",
        "mv",
        "id",
        "tr",
        "head",
    ]
    for name in wanted:
        (tools / name).symlink_to(shutil.which(name) or pytest.fail(f"{name} is not on this machine"))
    (tools / "python3").symlink_to(os.path.realpath(getattr(sys, "_base_executable", sys.executable)))
    # Certificates too are those of the machine: nobody has set a variable that names them.
    kept = {k: v for k, v in os.environ.items() if re.match(r"(PIP_|HTTPS?_PROXY|UV_|LANG)", k, re.IGNORECASE)}
    env = {**kept, "HOME": str(home), "PATH": str(tools)}
    env.pop("UV_PROJECT_ENVIRONMENT", None)
    done = subprocess.run(["make", "demo"], cwd=clone, env=env, capture_output=True, timeout=580, check=False)
    shown = done.stdout.decode() + done.stderr.decode()
    assert done.returncode == 0, shown
    assert re.search(r"\b1(\.0+)?\b", done.stdout.decode()), shown
