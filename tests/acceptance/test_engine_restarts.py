"""The container engine is restarted in the middle of a run: a clear error or a recovery, never a number, and a record that fits."""

from __future__ import annotations

from typing import Any

import pytest

from tests.acceptance.boxes import BOX as BOX_IMAGE
from tests.acceptance.boxes import STAYS, box_root
from tests.acceptance.conftest import Home, check, ended, eventually
from tests.acceptance.containers import in_engine
from tests.acceptance.own_engine import OwnEngine, own_engine
from tests.container_engine import archive_of, ensure

FIRST = "touch /srv/first; test -f /srv/inside"
UNDER_WAY = "touch /srv/began; until [ -e /srv/go ]; do sleep 0.1; done"


def steps(image: str) -> list[dict[str, Any]]:
    mode = {"sandbox_mode": "container", "image": image, "port": 8000, "network_policy": {"mode": "none"}}
    box = {"id": "box", "type": "deploy_sandbox", "sandbox_name": "box", **mode}
    at = {"base_dir": "/", "shell_timeout_seconds": 120}
    return [box, check(FIRST, id="first", **at), check(UNDER_WAY, id="middle", **at), check("test -f /srv/first", id="last", **at)]


@pytest.mark.timeout(500)
@pytest.mark.parametrize("keeps_containers", [False, True], ids=["its containers end", "its containers go on"])
def test_d02_an_engine_that_is_restarted_in_a_run_is_told_clearly_and_the_run_goes_on_after_it(keeps_containers: bool, home: Home) -> None:
    home.env["AGENT_ENV_LIMIT_KEEPER_IDLE_SECONDS"] = "0.2"
    with own_engine(keeps_containers=keeps_containers) as engine:
        home.env["DOCKER_HOST"] = engine.endpoint.url
        image = ensure(engine.endpoint, BOX_IMAGE, lambda: archive_of(box_root(), modes={"tmp": 0o1777}), [*STAYS, "WORKDIR /srv"])
        process = home.start("run", home.bundle(t=steps(image)), "--json", "--pause-on-failure")
        run_id = eventually(lambda: [run["run_id"] for run in home.runs()], "a run")[0]
        eventually(lambda: home("exec", f"{run_id}:box", "--", "test", "-e", "/srv/began").code == 0, "the command under way")
        restarted(engine)
        if keeps_containers:  # the command goes on in its container, so that whoever finds it again may wait for it
            eventually(lambda: may_end(home, run_id), "a place that lives")
        answer = ended(process)
        (run,) = answer.json["runs"]
        if run["status"] != "completed":
            assert (answer.code, run["status"], run["scores"]) == (1, "failed", {"first": 1.0}), answer.all
            assert run["error"]["code"] in {"transport_lost", "container_not_running", "engine_unavailable", "sandbox_unavailable"}
            assert run["error"]["step_id"] == "middle"
            shown = home.show(run_id)
            assert "running" not in {step.get("state", step.get("status")) for step in shown["steps"]}, shown
            again = home.start("resume", run_id, "--json", *([] if keeps_containers else ["--redeploy"]))
            eventually(lambda: may_end(home, run_id) or again.poll() is not None, "a place that lives")
            answer = ended(again)
        assert answer.code == 0, answer.all
        assert answer.json["runs"][0]["scores"] == {"first": 1.0, "middle": 1.0, "last": 1.0}
        assert keeps_containers or run["status"] == "failed", "its container has ended, so somebody made a score of nothing"
        assert (home("gc", "--kept").code, in_engine(engine.endpoint, home)) == (0, [])


def restarted(engine: OwnEngine) -> None:
    """As a crash of the engine, and its service's own start again."""
    engine.kill()
    engine.start()


def may_end(home: Home, run_id: str) -> bool:
    """Lets the command under way end, by a person's hand. Whether its place lives."""
    return home("exec", f"{run_id}:box", "--", "touch", "/srv/go").code == 0
