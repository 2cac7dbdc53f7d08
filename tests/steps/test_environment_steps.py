"""Steps on an environment without a gateway, against a server of the SDK in this process: what they do, and what they refuse."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from agent_env_sdk.environment import DataPart, Environment, add_data, environment, extension, get_data, read_json, reset_data, tool
from agent_env_sdk.testing import serve_here

from agent_env.documents.records import DeployedEnvironment
from agent_env.environments import UrlEnvironment
from agent_env.environments.faults import NotAdvertisedError
from agent_env.errors import UnsupportedError, UserError
from tests.steps.bench import LIMITS, BenchRun, on_bench

BELL = "urn:notes:bell/v1"


@environment(name="notes")
class Notes(Environment):
    """Notes, and a bell."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.rung = 0

    @reset_data
    def wipe(self) -> None:
        """Forgets everything."""
        self.notes.clear()

    @add_data
    def load(self, parts: list[Any]) -> None:
        """Takes notes."""
        for part in parts:
            self.notes += read_json(part)["notes"]

    @get_data
    def export(self) -> list[DataPart]:
        """Gives them."""
        return [DataPart(data={"notes": self.notes})]

    @tool()
    def write(self, text: str) -> str:
        """Write a note."""
        self.notes.append(text)
        return "written"

    @extension(BELL, description="Rings.")
    def ring(self, times: int) -> dict[str, Any]:
        """Rings."""
        if times > 3:
            raise ValueError("that is too loud")
        self.rung += times
        return {"rung": self.rung}


class DeployedRun(BenchRun):
    """A bench at which `notes` is deployed."""

    live: UrlEnvironment

    async def environment(self, env_id: str, step_id: str | None = None) -> Any:
        del step_id
        return self.live if env_id == "notes" else super().environment(env_id)

    def environment_record(self, env_id: str, step_id: str | None = None) -> DeployedEnvironment:
        del env_id, step_id
        return self.live.record


@pytest.fixture
def on_notes(tmp_path: Path) -> Callable[[Callable[[DeployedRun, Notes], Awaitable[None]]], None]:
    """Runs a test's body at such a bench."""

    def start(test: Callable[[DeployedRun, Notes], Awaitable[None]]) -> None:
        async def body(bare: BenchRun) -> None:
            notes = Notes()
            async with serve_here(notes) as served:
                bare.__class__ = DeployedRun
                assert isinstance(bare, DeployedRun)
                record = DeployedEnvironment.read(
                    {"env_id": "notes", "env_version": 1, "mcp_server_name": "notes", "mcp_url": f"{served.base}/mcp", "instance_id": "n-1"}
                )
                bare.context["deployed_envs"] = [record.to_json()]
                bare.live = UrlEnvironment(record, SimpleNamespace(limits=LIMITS))  # type: ignore[arg-type]
                try:
                    await test(bare, notes)
                finally:
                    await bare.live.aclose()

        on_bench(tmp_path, body, deployed=False)

    return start


def test_a_reset_empties_what_was_never_loaded_and_a_snapshot_is_a_universe(on_notes: Any) -> None:
    async def body(run: DeployedRun, notes: Notes) -> None:
        notes.notes = ["a", "b"]
        await run.do({"id": "keep", "type": "snapshot_env", "original_universe_artifact_id": None})
        (kept,) = run.metadata["env_snapshotted_universes"].values()
        universe = run.artifacts.get(kept["id"], kept["version"])
        assert universe.type == "environment_universe"
        made = run.artifacts.read(next(iter(run.artifacts.files(kept["id"], kept["version"]).values())))
        assert json.loads(made) == {"notes": ["a", "b"]}
        result = await run.do({"type": "reset_env", "env_id": "notes"})
        assert (notes.notes, result.summary()) == ([], "emptied notes")

    on_notes(body)


def test_extensions_are_called_in_order_and_what_was_applied_before_a_failure_is_kept(on_notes: Any) -> None:
    async def body(run: DeployedRun, notes: Notes) -> None:
        ring = {"service": "*", "uri": BELL, "args": {"times": 2}}
        await run.do({"type": "apply_server_config", "env_id": "notes", "directives": [ring]})
        assert notes.rung == 2
        loud = {"service": "notes", "uri": BELL, "args": {"times": 9}}
        result = await run.do({"type": "apply_server_config", "env_id": "notes", "directives": [ring, loud, ring]})
        assert notes.rung == 4
        assert "loud" in str(result.error)  # type: ignore[attr-defined]
        with pytest.raises(UserError, match="no server 'mail'"):
            await run.do({"type": "apply_server_config", "env_id": "notes", "directives": [ring, {**ring, "service": "mail"}]})
        assert notes.rung == 4
        other = {"service": "notes", "uri": "urn:other/v1", "args": {}}
        result = await run.do({"type": "apply_server_config", "env_id": "notes", "directives": [other], "tolerate_unadvertised": True})
        assert "urn:other/v1" in json.dumps(run.metadata)

    on_notes(body)


@pytest.mark.parametrize(
    "step",
    [
        {"type": "sync_env_clock", "virtual_time": "2030-01-01T00:00:00Z"},
        {"type": "register_env_triggers", "triggers": [{"id": "t", "when": {"type": "time", "at": "2030-01-01T00:00:00Z"}, "actions": []}]},
        {"type": "build_mcp_cli", "command_name": "notes"},
    ],
    ids=lambda step: step["type"],
)
def test_what_only_a_gateway_does_is_refused_without_one(on_notes: Any, step: dict[str, Any]) -> None:
    async def body(run: DeployedRun, notes: Notes) -> None:
        del notes
        with pytest.raises(UnsupportedError, match="has no gateway"):
            await run.do({**step, "env_id": "notes"})

    on_notes(body)


def test_access_is_not_changed_where_nobody_keeps_rules(on_notes: Any) -> None:
    async def body(run: DeployedRun, notes: Notes) -> None:
        del notes
        with pytest.raises(NotAdvertisedError, match="disable-tool"):
            await run.do({"type": "modify_env_tool_access", "env_id": "notes", "role": "clerk", "tools": ["write"], "action": "disable"})

    on_notes(body)
