"""A container that somebody starts again has forgotten what it was told in confidence, and is told again, never from a record."""

from __future__ import annotations

import hashlib
import secrets

from agent_env.containers import EngineEndpoint
from tests.acceptance.boxes import box_image
from tests.acceptance.conftest import Home
from tests.acceptance.containers import inspected, told
from tests.acceptance.session import Session

__all__ = ["box_image"]

READ = 'printf "%s" "$KEY" | sha256sum | cut -c1-64; echo "$PLAIN"'
"""What is shown never holds a secret, so its digest is."""


def read(canary: str, plain: str = "") -> str:
    return f"{hashlib.sha256(canary.encode()).hexdigest()}\n{plain}\n"


def holds(home: Home, text: str) -> list[str]:
    """Every file of a home that has a text in it."""
    files = [path for path in home.root.rglob("*") if path.is_file() and not path.is_symlink()]
    return [str(path) for path in files if text.encode() in path.read_bytes()]


def test_c13_a_container_that_was_started_again_by_somebody_has_its_secrets_and_nothing_else_has(
    home: Home, docker: EngineEndpoint, box_image: str
) -> None:
    canary = f"canary-{secrets.token_hex(8)}"
    home.env["TEST_KEY"] = canary
    box = Session(home, box_image, env_vars={"KEY": "env:TEST_KEY", "PLAIN": "seen"})
    assert box.sh(READ) == read(canary, "seen")
    told(docker, box.container_id, "restart")
    assert box.sh(READ) == read(canary, "seen")
    assert holds(home, canary) == []
    assert canary not in str(inspected(docker, box.container_id))
    box.teardown()


def test_c13_a_secret_that_has_no_value_any_more_is_named_and_nothing_runs_without_it(
    home: Home, docker: EngineEndpoint, box_image: str
) -> None:
    home.env["TEST_KEY"] = "told once"
    box = Session(home, box_image, env_vars={"KEY": "env:TEST_KEY"})
    told(docker, box.container_id, "restart")
    del home.env["TEST_KEY"]
    answer = home("exec", f"{box.run_id}:box", "--", "sh", "-c", READ)
    assert answer.code != 0
    assert "was started again by somebody" in answer.all
    assert "KEY" in answer.all
    home.env["TEST_KEY"] = "told again"
    assert box.sh(READ) == read("told again")
    box.teardown()
