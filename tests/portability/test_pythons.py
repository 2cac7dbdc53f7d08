"""The rooms that need no place, on the other Pythons that we say we run on, each in an environment of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.portability.mac import ROOT

ROOMS = ("tests/words", "tests/documents", "tests/config", "tests/stores", "tests/places")


def uv() -> str:
    """The tool that makes environments."""
    known = ROOT / ".tools/bin/uv"
    found = shutil.which("uv") or (str(known) if known.exists() else None)
    if found is None:
        pytest.skip("agentenv-capability-missing: uv")
    return found


def interpreter(version: str) -> str:
    """That Python, where it is installed: on the PATH, or with pyenv."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    for found in (shutil.which(f"python{version}"), *sorted(pyenv.glob(f"versions/{version}.*/bin/python"), reverse=True)):
        if found is not None and _is(found, version):
            return str(found)
    pytest.skip(f"agentenv-capability-missing: python{version}")


def _is(found: str | Path, version: str) -> bool:
    """Whether it runs (pyenv puts names on the PATH that don't), and is that Python."""
    asked = [found, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    return subprocess.run(asked, capture_output=True, text=True, check=False, timeout=60).stdout.strip() == version


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("version", ["3.12", "3.13"])
def test_the_unit_tests_pass_on_python(version: str, tmp_path: Path) -> None:
    python = interpreter(version)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("UV_", "PYTHON", "VIRTUAL_ENV"))}
    environment = {**kept, "UV_PROJECT_ENVIRONMENT": str(tmp_path / "venv"), "UV_PYTHON_DOWNLOADS": "never", "PYTHONDONTWRITEBYTECODE": "1"}
    sync = [uv(), "sync", "--quiet", "--frozen", "--python", python]
    made = subprocess.run(sync, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=400)
    if made.returncode != 0:
        pytest.skip(f"agentenv-capability-missing: packages for python{version} ({made.stderr.strip().splitlines()[-1:]})")
    told = ["-m", "pytest", "-q", "-k", "not postgres", "-W", "error::SyntaxWarning", *ROOMS]
    done = subprocess.run(
        [tmp_path / "venv/bin/python", *told], cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
