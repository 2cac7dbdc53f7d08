"""The scaffold's image, built as authors build it and served by the SDK's own harness."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from agent_env_sdk.testing import ImageError, serve_image

from agent_env.containers import EngineEndpoint
from tests.environments.conftest import BASE, base_image
from tests.sdk.test_authoring import scaffold

pytestmark = pytest.mark.timeout(300)
IMAGE = "agentenv-test/notes:1"


@pytest.fixture(scope="module")
def image(docker: EngineEndpoint, tmp_path_factory: pytest.TempPathFactory) -> str:
    base_image(docker, BASE)
    folder = scaffold(tmp_path_factory.mktemp("image") / "notes")
    variables = {**os.environ, "XDG_STATE_HOME": str(tmp_path_factory.mktemp("state"))}
    command = [str(Path(sys.executable).parent / "agent-env"), "image", "build", str(folder), "-t", IMAGE]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=290, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return IMAGE


async def test_the_scaffolds_image_serves_as_an_ordinary_user(image: str) -> None:
    async with serve_image(image, {"ENVIRONMENT_NAME": "notes"}) as notes:
        assert (await notes.card()).name == "notes"
        await notes.add({"notes": {"first": "hello"}})
        assert (await notes.call("notes_read", {"title": "first"})).text == "hello"
        assert (await notes.http.get(f"{notes.base}/ready")).json() == {"ready": True}


async def test_an_image_that_is_not_there_or_ends_at_once_is_told_with_the_reason(image: str) -> None:
    with pytest.raises(ImageError, match=r"(?i)no such image"):
        async with serve_image("agentenv-test/none:1"):
            raise AssertionError("there is no such image")
    with pytest.raises(ImageError, match=r"ended with exit code 1: (?s:.*)MCP_PORT|invalid literal"):
        async with serve_image(image, {"MCP_PORT": "many"}):
            raise AssertionError("it can't serve there")
