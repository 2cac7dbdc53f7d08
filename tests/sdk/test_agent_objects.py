"""What agents move under grants: trajectories, bundles of skills, snapshots."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from agent_env_sdk.environment import transfers
from agent_env_sdk.testing.agents import ending, serve_agent_here
from agent_env_sdk.wire.agent_extensions import SKILL_CONFIG, SNAPSHOT, TRAJECTORY
from agent_env_sdk.wire.errors import AgentEnvError

from tests.sdk.agents import Echo
from tests.sdk.https import Store


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.setattr(transfers, "BACKOFF_SECONDS", 0.001)
    with Store() as opened:
        monkeypatch.setenv("SSL_CERT_FILE", str(opened.certificate))
        yield opened


def soon() -> str:
    """Counted from now: a test may run long after its module was read."""
    return (datetime.now(UTC) + timedelta(minutes=10)).isoformat()


def reading(store: Store, path: str, limit: int = 1_000_000) -> dict[str, Any]:
    read = {"kind": "http-get", "url": f"{store.url}{path}", "expires_at": soon()}
    return {"media_type": "application/octet-stream", "max_bytes": limit, "read": read}


def writing(store: Store, path: str, media_type: str = "application/octet-stream", limit: int = 1_000_000) -> dict[str, Any]:
    write = {"kind": "http-put", "url": f"{store.url}{path}", "expires_at": soon()}
    return {"media_type": media_type, "max_bytes": limit, "write": write}


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def working_in(folder: Path) -> Echo:
    agent = Echo()
    agent.workspace = folder / "workspace"
    agent.workspace.mkdir(parents=True)
    agent.skills_folder = folder / "skills"
    return agent


async def test_a_trajectory_is_uploaded_as_one_array(store: Store) -> None:
    async with serve_agent_here(Echo()) as echo:
        task = await echo.prompt("record 2", context_id="c")
        objects = {"trajectory": writing(store, "/t.json", "application/json")}
        answer = await echo.invoke(TRAJECTORY, "get", {"task_id": task.id, "objects": objects})
        inline = await echo.invoke(TRAJECTORY, "get", {"context_id": "c"})
        limited = {"trajectory": writing(store, "/u.json", "application/json", 10)}
        with pytest.raises(AgentEnvError) as small:
            await echo.invoke(TRAJECTORY, "get", {"task_id": task.id, "objects": limited})
        with pytest.raises(AgentEnvError, match="application/json"):
            await echo.invoke(TRAJECTORY, "get", {"task_id": task.id, "objects": {"trajectory": writing(store, "/v")}})
    assert json.loads(store.objects["/t.json"]) == inline["trajectory"]
    assert answer["objects"]["trajectory"]["size_bytes"] == len(store.objects["/t.json"])
    assert (small.value.code, small.value.status) == ("transfer_too_large", 413)


async def test_a_bundle_of_a_skill_appears_whole_or_not_at_all(store: Store, tmp_path: Path) -> None:
    store.objects |= {"/s": b"# Sum", "/x": b"1+1"}
    files = [{"path": "SKILL.md", "object": reading(store, "/s", 9)}, {"path": "more/x.txt", "object": reading(store, "/x", 9)}]
    bundle = {"name": "sum", "description": "adds", "skill_bundle": {"max_total_bytes": 18, "files": files}}
    async with serve_agent_here(working_in(tmp_path)) as echo:
        missing = [files[0], {"path": "y", "object": reading(store, "/missing", 9)}]
        with pytest.raises(AgentEnvError) as failed:
            await echo.invoke(SKILL_CONFIG, "add", {**bundle, "skill_bundle": {"max_total_bytes": 18, "files": missing}})
        assert list((tmp_path / "skills").iterdir()) == []
        assert await echo.invoke(SKILL_CONFIG, "add", bundle) == {"name": "sum"}
        for wrong in ([files[1]], [*files, files[0]], [{**files[0], "path": "../SKILL.md"}]):
            with pytest.raises(AgentEnvError):
                await echo.invoke(SKILL_CONFIG, "add", {**bundle, "name": "w", "skill_bundle": {"max_total_bytes": 99, "files": wrong}})
    assert failed.value.code == "transfer_rejected"
    assert (tmp_path / "skills/sum/more/x.txt").read_text() == "1+1"
    assert [path.name for path in (tmp_path / "skills").iterdir()] == ["sum"]


async def test_a_snapshot_goes_on_elsewhere(store: Store, tmp_path: Path) -> None:
    first, second = working_in(tmp_path / "a"), working_in(tmp_path / "b")
    (first.workspace / "notes").mkdir()
    (first.workspace / "notes/n.txt").write_text("kept")
    (second.workspace / "old.txt").write_text("gone afterwards")
    async with serve_agent_here(first) as echo:
        await echo.prompt("hello", context_id="c")
        objects = {"trajectory": writing(store, "/t"), "workspace": writing(store, "/w")}
        saved = await echo.invoke(SNAPSHOT, "save", {"context_id": "c", "objects": objects})
        with pytest.raises(AgentEnvError) as unknown:
            await echo.invoke(SNAPSHOT, "save", {"context_id": "nobody", "objects": objects})
    async with serve_agent_here(second) as echo:
        sources = {"trajectory": reading(store, "/t"), "workspace": reading(store, "/w")}
        assert await echo.invoke(SNAPSHOT, "load", {"objects": sources, "target_context_id": "d"}) == {"context_id": "d"}
        assert ending(await echo.prompt("again", context_id="d")).text == "hello again"
    assert saved["context_id"] == "c"
    assert saved["objects"]["workspace"]["size_bytes"] == len(store.objects["/w"])
    assert unknown.value.status == 404
    assert [str(path.relative_to(second.workspace)) for path in sorted(second.workspace.rglob("*"))] == ["notes", "notes/n.txt"]


async def test_a_snapshot_that_is_none_leaves_the_workspace_alone(store: Store, tmp_path: Path) -> None:
    agent = working_in(tmp_path)
    (agent.workspace / "old.txt").write_text("stays")
    store.objects |= {"/t": b"no archive"}
    async with serve_agent_here(agent) as echo:
        with pytest.raises(AgentEnvError) as refused:
            await echo.invoke(SNAPSHOT, "load", {"objects": {"trajectory": reading(store, "/t"), "workspace": reading(store, "/t")}})
    assert (refused.value.code, refused.value.status) == ("invalid_snapshot", 422)
    assert [path.name for path in agent.workspace.iterdir()] == ["old.txt"]
    assert names(tmp_path) == ["workspace"]
