"""Other people's servers behind our gateway, and other people's bundles as they were published: both run, and the kit judges them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.environment_steps.conftest import User, python_base, user
from tests.environments.conftest import base_image

__all__ = ["python_base", "user"]

pytestmark = pytest.mark.timeout(900)
ROOT = Path(__file__).parents[2] / "interop"
EXAMPLES = ROOT / "reference/.packages/agent_env/examples"
PUBLISHED_BASE = "public.ecr.aws/docker/library/python:3.11-slim"
PINS = {"newest": "==0.1.379", "oldest": "==0.1.269"}
"""The index has nothing older than the oldest."""


def checked(user: User, folder: Path, *options: str) -> dict[str, Any]:
    answer = user("env", "check", folder, "--json", *options)
    assert answer.out, answer.all
    return dict(answer.json)


def failures(report: dict[str, Any]) -> dict[str, str]:
    """What speaks against any of the servers."""
    rows = [(server, check) for server, said in report["servers"].items() for check in said["checks"]]
    return {f"{server} {c['id']}": c["detail"] for server, c in rows if c["result"] == "failed" and not c["advisory"]}


@pytest.mark.parametrize("age", ["newest", "oldest"])
def test_a_server_of_the_published_package_passes_the_kit(user: User, age: str) -> None:
    folder = user.cwd / "chat"
    shutil.copytree(ROOT / "servers/published", folder)
    needs = (folder / "requirements.txt").read_text()
    assert PINS["newest"] in needs
    (folder / "requirements.txt").write_text(needs.replace(PINS["newest"], PINS[age]))
    report = checked(user, folder)
    assert (failures(report), report["passed"]) == ({}, True)
    chat = {check["id"]: check["result"] for check in report["servers"]["chat"]["checks"]}
    assert chat["universe_roundtrip/what_it_exports_loads_again"] == "passed"


def test_a_server_that_knows_nothing_of_environments_passes_the_kit(user: User) -> None:
    report = checked(user, ROOT / "servers/fastmcp")
    assert (failures(report), report["passed"], set(report["servers"])) == ({}, True, {"adder", "gateway"})


def test_a_server_of_npm_is_served_and_its_one_fault_is_found(user: User, docker: Any) -> None:
    base_image(docker, "node:20-slim")
    report = checked(user, ROOT / "servers/everything")
    assert set(report["servers"]) == {"everything", "gateway"}
    # One parameter of that server has no description, which the reference's own gate refuses too.
    assert {name.partition(" ")[2] for name in failures(report)} == {"mcp_tool_schema/every_parameter_is_described"}


@pytest.mark.parametrize("name", ["echo-mcp", "mail-mcp"])
def test_a_published_bundle_runs_as_it_is(user: User, name: str) -> None:
    assert EXAMPLES.is_dir(), f"{EXAMPLES} is not there: run `make interop`"
    assert user("image", "base", PUBLISHED_BASE, "python:3.12-slim").code == 0
    (run,) = user.scores(EXAMPLES / name)
    assert (run["status"], set(run["scores"].values())) == ("completed", {1.0}), run["error"]
