"""Folders of images that nobody but root could work in, and links in images that lead loaded files elsewhere; on both shapes of sandbox."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from agent_env.containers import EngineEndpoint
from tests.acceptance.boxes import STAYS, box_root
from tests.acceptance.conftest import Home, check, clean_up
from tests.acceptance.containers import in_engine
from tests.container_engine import archive_of, ensure

PROVIDERS = ("local", "rootfs")
CHANGES = (*STAYS[1:], "USER worker", "WORKDIR /work")


@pytest.fixture(autouse=True)
def _nothing_left(home: Home, docker: EngineEndpoint) -> Iterator[None]:
    yield
    assert home("gc", "--kept").code == 0
    left = in_engine(docker, home)
    clean_up(home)
    assert left == []


def image(docker: EngineEndpoint, name: str, *changes: str, **files: bytes | str | None) -> str:
    modes = {"tmp": 0o1777, "work": 0o755}
    return ensure(docker, f"agentenv-test/{name}:1", lambda: archive_of({**box_root(), **files}, modes=modes), [*changes])


def box(provider: str, image: str) -> dict[str, object]:
    fields = {"sandbox_type": provider, "image": image, "port": 8000}
    return {"id": "box", "type": "deploy_sandbox", "sandbox_name": "box", "sandbox_mode": "container", **fields}


@pytest.mark.parametrize("provider", PROVIDERS)
def test_fi15_the_images_user_works_in_the_folder_that_a_workdir_made(home: Home, docker: EngineEndpoint, provider: str) -> None:
    """Also its own command does, from its first moment on."""
    name = image(docker, "workdir", 'CMD ["sh","-c","touch /work/first && exec sleep 100000"]', *CHANGES, work=None)
    steps = [box(provider, name), {**check("test $(id -u) = 1001", "touch x", "test -O first", "test -O /work"), "base_dir": "/work"}]
    answer = home("run", home.bundle(t=steps), "--json")
    assert answer.code == 0, answer.all
    assert answer.json["runs"][0]["scores"] == {"check": 1.0}
    used = home("runs", "show", answer.json["runs"][0]["run_id"], "--json").json["used"]
    (digest,) = [each["digest"] for each in used if (each["collection"], each["id"]) == ("images", name)]
    assert digest.startswith("sha256:")
    assert f"images/{name}" in home("runs", "show", answer.json["runs"][0]["run_id"]).out


@pytest.mark.parametrize("provider", PROVIDERS)
def test_fi15_a_folder_that_holds_something_of_roots_stays_roots(home: Home, docker: EngineEndpoint, provider: str) -> None:
    files: dict[str, bytes | str | None] = {"work": None, "work/grader": b"not the agent's\n"}
    name = image(docker, "workdir-full", 'CMD ["sleep","100000"]', *CHANGES, **files)
    steps = [box(provider, name), {**check("! touch x", "! rm -f grader", "test -f grader"), "base_dir": "/work"}]
    answer = home("run", home.bundle(t=steps), "--json")
    assert answer.json["runs"][0]["scores"] == {"check": 1.0}, answer.all


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_link_in_an_image_leads_no_loaded_file_elsewhere(home: Home, docker: EngineEndpoint, provider: str) -> None:
    name = image(docker, "linked", 'CMD ["sleep","100000"]', loaded="/etc")
    home.write("b/artifacts/inputs/passwd", "root::0:0::/:/bin/sh\n")
    load = {"id": "load", "type": "load_artifact", "sandbox_name": "box", "artifact_id": "inputs"}
    answer = home("run", home.bundle(t=[box(provider, name), load]), "--keep", "--json")
    assert answer.code == 1
    (run,) = answer.json["runs"]
    assert run["error"]["step_id"] == "load"
    assert "/loaded is a link to '/etc', so nothing was loaded" in run["error"]["message"]
    assert "worker" in home("exec", run["run_id"], "--", "cat", "/etc/passwd").out
    assert home("runs", "teardown", run["run_id"]).code == 0
