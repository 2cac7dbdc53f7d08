"""The conformance kit against every provider that can be had on this machine, each case a test or each provider one."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent_env.config import Config
from agent_env.containers import EngineEndpoint
from agent_env.sandboxes import provider
from agent_env.sandboxes.conformance import CASES, Bench, Result, Subject, Verdict, run_cases, subject_of
from tests.acceptance.boxes import python_image
from tests.cli.conftest import Cli
from tests.providers.cloud import configuration
from tests.sandboxes import people

__all__ = ["python_image"]

REMOTE, LOCAL = "remote_paths", "local"


@pytest.fixture(scope="session", params=[LOCAL, REMOTE])
def provider_subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, installed: None) -> Iterator[Subject]:
    """Overrides the plug-in's fixture: these providers are not configured anywhere."""
    root = tmp_path_factory.mktemp(request.param)
    options = request.getfixturevalue("cloud_options") if request.param == REMOTE else {}

    def make():
        return provider(request.param, state_root=root / "state", options=options)

    recipe = {"name": request.param, "state_root": str(root / "state"), "options": options}
    yield Subject(request.param, make, recipe=recipe)
    assert [path.name for folder in ("work", "state/sandboxes") for path in (root / folder).glob("*")] == []


def test_a_provider_conforms(provider_case: Callable[[], None]) -> None:
    provider_case()


def test_there_are_at_least_eighty_cases_and_each_says_what_it_is() -> None:
    assert len(CASES) >= 80
    assert len({case.id for case in CASES}) == len(CASES)
    assert [case.title for case in CASES if not (case.title.endswith(".") and (case.title[0].isupper() or case.title[0] == "`"))] == []


@pytest.mark.timeout(300)
def test_a_provider_with_a_subdomain_a_port_conforms_by_the_command(cli: Cli, cloud_options: dict[str, str]) -> None:
    (cli.home / "config/agent-env").mkdir(parents=True)
    (cli.home / "config/agent-env/config.toml").write_text(configuration(cloud_options))
    done = cli("provider", "check", "remote_subdomains", "--jobs", "4", "--json")
    failed = [case for case in done.json["cases"] if case["result"] == "failed"]
    assert not failed, failed
    assert (done.code, done.json["ok"], done.json["provider"]) == (0, True, "remote_subdomains")
    assert done.json["passed"] >= 100
    assert not (cli.home / "state").exists() or not list((cli.home / "state").rglob("sandboxes/*"))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_containers_beside_a_machine_conform_by_the_command(cli: Cli, docker: EngineEndpoint, python_image: str) -> None:
    cli.env["DOCKER_HOST"] = docker.url
    done = cli("provider", "check", "local", "--mode", "container", "--image", python_image, "--jobs", "4", "--json")
    failed = [case for case in done.json["cases"] if case["result"] == "failed"]
    assert not failed, failed
    assert (done.code, done.json["ok"]) == (0, True)
    assert done.json["passed"] >= 110


async def _verdicts(world: people.World, name: str) -> list[tuple[str, str, str]]:
    os.environ["AGENT_ENV_LOCAL_SANDBOX_DIR"] = str(world.work)
    os.environ["HOME"] = str(world.home)
    options = {"confiner": "helper"} if world.way == "user without bubblewrap" and name == LOCAL else {}
    subject = Subject(name, lambda: provider(name, state_root=world.state, options=options))
    # The keeper is an interpreter of its own, and this one may lie where an ordinary user can't look.
    unable = {"egress.allowlist"} if not os.access(sys.executable, os.X_OK) else set()
    cases = [case for case in CASES if not case.needs & unable]
    found: list[Verdict] = [verdict async for verdict in run_cases(Bench(subject), cases, jobs=4)]
    assert world.left() == []
    assert sum(1 for verdict in found if verdict.result is Result.PASSED) >= 80
    return [(verdict.case.id, verdict.result.value, verdict.detail) for verdict in found]


def _as_it_is() -> None:
    """The machine is left as it is."""


# bubblewrap beside a network of its own is not among them: slirp4netns may bring the loopback up before bubblewrap gives it its address.
# Either confiner and either network are tried once; the third pair is in the slow suite.
ORDINARY = [
    ("user with bubblewrap", False),
    ("user without bubblewrap", True),
    pytest.param("user without bubblewrap", False, marks=pytest.mark.slow),
]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("way", "tunnels"), ORDINARY, ids=lambda value: value if isinstance(value, str) else "own network" * value)
def test_local_conforms_for_an_ordinary_user(way: str, tunnels: bool) -> None:
    if tunnels and os.geteuid() != 0:
        pytest.skip("agentenv-capability-missing: root, to open the tunnel device")
    found = people.act(way, _verdicts, LOCAL, prepare=people.open_tunnels if tunnels else _as_it_is)
    assert [one for one in found if one[1] == "failed"] == []


@pytest.mark.timeout(300)
# Its places are this machine: there is no root in them but its own.
@pytest.mark.skipif(os.geteuid() != 0, reason="agentenv-capability-missing: root")
def test_the_bare_host_conforms_as_far_as_it_says() -> None:
    found = people.act(people.WAYS[0], _verdicts, "unsafe_host")
    assert [one for one in found if one[1] == "failed"] == []


def test_a_configured_provider_is_made_with_its_own_options(tmp_path: Path) -> None:
    subject = subject_of(LOCAL, Config(tmp_path), tmp_path / "state")
    assert subject.make().name == LOCAL
    assert subject.recipe is not None
    assert asyncio.run(Bench(subject).mode()) == "vm"
