"""`make test` on machines where nothing can be installed and no engine started: it says so, and goes on to the tests."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[2] / "tools"
ELSEWHERE = "unix:///nonexistent/socket"
NO_ENGINE = f"no engine is started beside the one that DOCKER_HOST names, {ELSEWHERE}"


def ran(script: str, path: Path) -> tuple[int, str]:
    """How a script ends with only the programs of a folder, and what it complains of."""
    for name in ("sh", "dirname", "ls", "perl"):
        if (program := shutil.which(name)) is not None:
            (path / name).symlink_to(program)
    variables = {"PATH": str(path), "DOCKER_HOST": ELSEWHERE}
    done = subprocess.run(
        [path / "sh", TOOLS / script], check=False, env=variables, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    return done.returncode, done.stderr


def test_no_engine_is_started_beside_the_one_that_docker_host_names(tmp_path: Path) -> None:
    code, said = ran("start-test-engine.sh", tmp_path)
    assert code == 1
    assert NO_ENGINE in said


STOPS = {"not-root": (1000, "needs root on Debian"), "no-packages": (0, "apt-get failed, see above")}


@pytest.mark.parametrize(("user", "why"), STOPS.values(), ids=STOPS)
def test_what_can_not_be_installed_is_named_and_stops_nothing(tmp_path: Path, user: int, why: str) -> None:
    for name, script in {"id": f"echo {user}", "apt-get": "echo E: no package index >&2; exit 100"}.items():
        (tmp_path / name).write_text(f"#!{shutil.which('sh')}\n{script}\n")
        (tmp_path / name).chmod(0o755)
    code, said = ran("install-test-system.sh", tmp_path)
    assert code == 0
    assert f"not installed here ({why}):" in said
    assert NO_ENGINE in said
