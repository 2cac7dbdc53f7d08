"""Chains of providers: who is tried, how often, for how long, and what is told and recorded."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from agent_env.defaults import DEFAULT_LIMITS
from agent_env.engine.fallback import first_that_can, links
from agent_env.errors import (
    AgentEnvError,
    DeadlineError,
    InfrastructureError,
    StorageError,
    SupersededError,
    TransportLostError,
    UnsupportedError,
    UserError,
)
from tests.cli.conftest import Cli
from tests.providers.cloud import configuration
from tests.providers.packages import PROVIDER, install

LIMITS = replace(DEFAULT_LIMITS, retry_backoff_seconds=0.001, deploy_attempts=3)


class Maker:
    """Makes a sandbox's name, after what each provider is told to say; remembers who was asked."""

    def __init__(self, **sayings: Sequence[Exception | None]) -> None:
        self._sayings = {name: list(said) for name, said in sayings.items()}
        self.asked: list[str] = []
        self.passed_over: Sequence[str] = ()

    async def __call__(self, name: str, passed_over: Sequence[str]) -> str:
        self.asked.append(name)
        self.passed_over = passed_over
        said = self._sayings.get(name) or [None]
        error = said.pop(0) if len(said) > 1 else said[0]
        if error is not None:
            raise error
        return f"made by {name}"


def tried(maker: Maker, chain: str) -> str:
    return asyncio.run(first_that_can(links(chain), maker, what="sandbox 's'", limits=LIMITS))


def test_a_chain_is_read_in_order_and_each_name_once() -> None:
    assert links(" a, b ,,a,c ") == ["a", "b", "c"]


def test_who_can_not_is_passed_over_at_once_and_its_reason_is_kept() -> None:
    maker = Maker(a=[UnsupportedError("no allow-list here")])
    assert tried(maker, "a,b") == "made by b"
    assert (maker.asked, list(maker.passed_over)) == (["a", "b"], ["a: no allow-list here"])


def test_a_start_that_fails_is_tried_again_and_may_succeed() -> None:
    maker = Maker(a=[TransportLostError("broke"), InfrastructureError("busy"), None])
    assert tried(maker, "a,b") == "made by a"
    assert maker.asked == ["a", "a", "a"]


def test_attempts_are_bounded_and_then_the_next_one_is_asked() -> None:
    maker = Maker(a=[InfrastructureError("quota of machines")])
    assert tried(maker, "a,b") == "made by b"
    assert maker.asked == ["a", "a", "a", "b"]


def test_a_start_that_ran_out_of_time_is_not_tried_again() -> None:
    maker = Maker(a=[DeadlineError("creating did not end within 180 s")])
    assert tried(maker, "a,b") == "made by b"
    assert maker.asked == ["a", "b"]


def test_a_plugin_that_breaks_does_not_end_the_chain() -> None:
    maker = Maker(a=[ZeroDivisionError("inside")])
    assert tried(maker, "a,b") == "made by b"
    assert list(maker.passed_over) == ["a: the provider 'a' broke: ZeroDivisionError: inside (agent-env provider check a)"]


@pytest.mark.parametrize(
    ("errors", "kind"),
    [
        ((UnsupportedError("no gpu"), UnsupportedError("no ports")), UnsupportedError),
        ((UnsupportedError("no gpu"), InfrastructureError("no ports")), InfrastructureError),
        ((InfrastructureError("no gpu"), UnsupportedError("no ports")), InfrastructureError),
    ],
)
def test_when_all_fail_every_reason_is_told(errors: tuple[AgentEnvError, AgentEnvError], kind: type[AgentEnvError]) -> None:
    with pytest.raises(kind) as caught:
        tried(Maker(a=[errors[0]], b=[errors[1]]), "a,b")
    assert type(caught.value) is kind
    assert caught.value.message == "no provider of a, b made sandbox 's': a: no gpu; b: no ports"


def test_a_single_providers_error_stays_its_own() -> None:
    with pytest.raises(DeadlineError, match=r"^only this$"):
        tried(Maker(a=[DeadlineError("only this")]), "a")


@pytest.mark.parametrize(
    "error", [UserError("no option 'x'"), SupersededError("taken over"), StorageError("disk full")], ids=lambda error: error.code
)
def test_what_no_other_provider_would_change_ends_the_chain(error: AgentEnvError) -> None:
    maker = Maker(a=[error])
    with pytest.raises(type(error)):
        tried(maker, "a,b")
    assert maker.asked == ["a"]


def test_no_name_at_all_is_told() -> None:
    with pytest.raises(UnsupportedError, match="no provider is named"):
        tried(Maker(), " , ")


# With real providers, through the command

Task = Callable[..., list[dict[str, object]]]
SLOW = PROVIDER + "\n    async def create(self, spec):\n        import asyncio\n        await asyncio.Event().wait()\n"


def task(chain: str, **fields: object) -> list[dict[str, object]]:
    return [
        {"id": "box", "type": "deploy_sandbox", "sandbox_name": "s", "sandbox_mode": "vm", "sandbox_type": chain, **fields},
        {
            "id": "look",
            "type": "verify_sandbox",
            "sandbox_name": "s",
            "criteria": [{"type": "bash_cmd", "cmd": "echo yes", "expected_output": "yes"}],
        },
    ]


def configure(cli: Cli, text: str) -> None:
    (cli.home / "config/agent-env").mkdir(parents=True, exist_ok=True)
    (cli.home / "config/agent-env/config.toml").write_text(text)


def sandbox_of(cli: Cli) -> tuple[str, dict[str, object]]:
    """How the newest run ended, and what its record says of its sandbox."""
    newest = cli("runs", "list", "--json").json["runs"][0]
    shown = cli("runs", "show", newest["run_id"], "--json").json
    return shown["status"], shown["notes"]["sandboxes"]["s"] if "sandboxes" in shown["notes"] else shown["notes"]


def test_a_cloud_that_is_gone_is_passed_over_and_the_record_says_who_made_it(cli: Cli) -> None:
    configure(cli, configuration({"address": "127.0.0.1:9", "key": "k"}))
    cli.write("task.json", task("remote_paths,local"))
    done = cli("run", "task.json", "--json")
    assert done.code == 0, done.all
    status, record = sandbox_of(cli)
    assert (status, record["provider"]) == ("completed", "local")
    assert "remote_paths: the cloud can't be reached" in json.dumps(record["passed_over"])


def test_a_run_on_the_cloud_is_made_reached_and_removed_by_the_recorded_provider(cli: Cli, cloud_options: dict[str, str]) -> None:
    configure(cli, configuration(cloud_options))
    cli.write("task.json", task("remote_paths,local"))
    done = cli("run", "task.json", "--keep", "--json")
    assert done.code == 0, done.all
    run_id = done.json["runs"][0]["run_id"]
    assert sandbox_of(cli)[1]["provider"] == "remote_paths"
    configure(cli, '[sandbox]\ndefault = "local"\n' + configuration(cloud_options))
    assert cli("exec", run_id, "--", "cat", "/proc/sys/kernel/ostype").out == "Linux\n"
    removed = cli("runs", "teardown", run_id, "--json")
    assert (removed.code, len(removed.json["removed"])) == (0, 1), removed.all


def test_a_network_policy_that_a_member_can_not_hold_passes_it_over(cli: Cli) -> None:
    cli.write("task.json", task("unsafe_host,local", network_policy={"mode": "none"}))
    done = cli("run", "task.json", "--json", env={"AGENT_ENV_UNSAFE_HOST": "1"})
    assert done.code == 0, done.all
    record = sandbox_of(cli)[1]
    assert (record["provider"], record["network"]) == ("local", "none")
    assert "can't hold a network policy of mode 'none'" in json.dumps(record["passed_over"])


def test_each_member_has_its_own_deadline(cli: Cli, tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    install(site, "slow-cloud", entries={"agent_env.sandbox_providers": {"somebody": "slow_cloud:Provider"}}, code=SLOW)
    cli.env["PYTHONPATH"] = f"{site}:{cli.env['PYTHONPATH']}"
    cli.write("task.json", task("somebody,local"))
    done = cli("run", "task.json", "--json", env={"AGENT_ENV_LIMIT_DEPLOY_SECONDS": "3"})
    assert done.code == 0, done.all
    record = sandbox_of(cli)[1]
    assert record["provider"] == "local"
    assert "did not end within 3 s" in json.dumps(record["passed_over"])


def test_container_mode_goes_through_the_chain_and_tells_every_reason(cli: Cli, cloud_options: dict[str, str]) -> None:
    configure(cli, configuration(cloud_options))
    cli.write("task.json", task("remote_paths,unsafe_host", sandbox_mode="container", image="agentenv-test/none", port=8000))
    done = cli("run", "task.json")
    assert done.code != 0
    assert "'remote_paths' makes no sandbox of mode 'container'" in done.all
    assert "unsafe_host" in done.all
