"""What is shipped: the wheel holds what runs need and nothing that tests need."""

from __future__ import annotations

import re
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    uv = shutil.which("uv") or str(ROOT / ".tools/bin/uv")
    out = tmp_path_factory.mktemp("wheel")
    subprocess.run([uv, "build", "--wheel", "--quiet", "--out-dir", out, ROOT], check=True, timeout=100)
    return zipfile.ZipFile(next(out.glob("agent_env-*.whl")))


def test_the_wheel_holds_both_helpers_the_bundles_and_the_frozen_schema(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    for needed in (
        "agent_env/places/helper/bin/agentenv-helper-x86_64",
        "agent_env/places/helper/bin/agentenv-helper-aarch64",
        "agent_env_bundles/hello/tasks/hello.json",
        "agent_env_bundles/tour/evals/tour.toml",
        "agent_env/py.typed",
    ):
        assert needed in names
    assert any(name.startswith("agent_env/stores/") and name.endswith(".sql") for name in names)


def test_the_wheel_ships_no_test_code(wheel: zipfile.ZipFile) -> None:
    assert not [name for name in wheel.namelist() if re.search(r"(^|/)(tests?|conftest)[/.]", name)]


def test_no_tracked_file_names_a_machine_or_a_workplace() -> None:
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode().split("\0")
    workplace = f"{ROOT}/"
    guilty = []
    for name in tracked:
        path = ROOT / name
        if name and path.is_file() and not name.endswith(".lock"):
            text = path.read_bytes().decode("utf-8", "replace")
            if len(workplace) > 5 and workplace in text:
                guilty.append(name)
    assert not guilty
