"""What an agent's calls change: recorded by real agents, fetched by way of their own stores, and replayed in others."""

from __future__ import annotations

import asyncio
import io
import json
import tarfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from agent_env_sdk.agent.scripted import Scripted
from agent_env_sdk.testing.agents import serve_agent_here

from agent_env.agents import changelogs
from agent_env.agents.faults import AgentFailedError, AgentNotAdvertisedError
from agent_env.agents.live import RecordedAgent
from agent_env.clock import SystemClock
from agent_env.documents.records import DeployedAgent
from tests.agents.servers import QUICK, outgoing, script

TOKEN = "of-this-deployment"
KNOWN: frozenset[str] = frozenset()


@asynccontextmanager
async def deployed(root: Path, *, token: str | None = TOKEN) -> AsyncIterator[RecordedAgent]:
    """A scripted agent that works in `root/work` and outlives being served."""
    (root / "work").mkdir(parents=True, exist_ok=True)
    async with serve_agent_here(Scripted(folder=root / "work"), token=token, state=root / "state") as served:
        record = DeployedAgent(agent_name="solver", api_url=served.base, a2a_url=served.base)
        making: Any = SimpleNamespace(limits=QUICK)
        agent = RecordedAgent(record, making, shape=None, token=token)
        try:
            yield agent
        finally:
            await agent.aclose()


async def does(agent: RecordedAgent, *commands: str, number: int = 1) -> None:
    actions = [{"shell": command} for command in commands]
    turn = await agent.ask(outgoing(script(*actions, {"say": "done"}), message_id=f"m-{number}"))
    assert turn.text == "done", turn


async def applied(agent: RecordedAgent, increments: dict[str, Path]) -> None:
    await changelogs.apply(agent, increments, limits=QUICK, clock=SystemClock(), seconds=30.0)


def tree(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): f"-> {path.readlink()}" if path.is_symlink() else path.read_text() if path.is_file() else "/"
        for path in sorted(folder.rglob("*"))
    }


async def test_each_call_is_an_increment_and_replaying_them_gives_the_same_files(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    (one / "work").mkdir(parents=True)
    (one / "work/before").write_text("not recorded")
    async with deployed(one) as agent:
        roots = await changelogs.enable(agent, clock=SystemClock(), seconds=30.0)
        assert roots == [str(one / "work")]
        first = "mkdir -p d/e; echo 1 > d/e/f; echo gone > g; ln -s /etc/hostname l"
        await does(agent, first, "true", "rm g; echo 2 > d/e/f; rm before; mkdir before")
        came = await changelogs.fetched(agent, tmp_path, known=KNOWN, limits=QUICK)
        assert list(came) == ["000000.tar.gz", "000002.tar.gz"], "a call that changed nothing is none"
        await changelogs.cleared(agent, list(came))
        assert await changelogs.fetched(agent, tmp_path, known=KNOWN, limits=QUICK) == {}
    async with deployed(one) as agent:
        await does(agent, "echo 3 > h", number=2)
        more = await changelogs.fetched(agent, tmp_path, known=frozenset(came), limits=QUICK)
        assert list(more) == ["000003.tar.gz"], "positions go on after a restart"
    async with deployed(other) as agent:
        await applied(agent, {"000000.tar.gz": came["000000.tar.gz"]})
        assert tree(other / "work") == {"d": "/", "d/e": "/", "d/e/f": "1\n", "g": "gone\n", "l": "-> /etc/hostname"}
        await applied(agent, {**came, **more})
    assert tree(other / "work") == tree(one / "work")


async def test_what_is_no_changelog_is_refused_and_leads_nowhere(tmp_path: Path) -> None:
    def increment(name: str, about: dict[str, Any], **files: bytes) -> Path:
        path = tmp_path / name
        with tarfile.open(path, "w:gz") as archive:
            for inner, content in {"changes.json": json.dumps(about).encode(), **files}.items():
                entry = tarfile.TarInfo(inner)
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
        return path

    outside = tmp_path / "outside"
    outside.write_text("kept")
    about = {"format": "agentenv-sdk-changes/1", "position": 0, "roots": ["/work"], "deleted": []}
    bad = {
        "no-format": increment("a", {}),
        "deletes": increment("b", {**about, "deleted": [[0, "../../outside"]]}),
        "writes": increment("c", about, **{"files/0/../../../../outside": b"x"}),
        "roots": increment("d", {**about, "roots": ["/work", "/etc"]}),
    }
    async with deployed(tmp_path / "one") as agent:
        for name, file in bad.items():
            with pytest.raises(AgentFailedError, match="invalid_changelog") as raised:
                await applied(agent, {"000000.tar.gz": file})
            assert raised.value.status == 422, name
    assert outside.read_text() == "kept"
    async with deployed(tmp_path / "two", token=None) as agent:
        with pytest.raises(AgentNotAdvertisedError, match="known by its address alone"):
            await changelogs.enable(agent, clock=SystemClock(), seconds=30.0)


@pytest.mark.parametrize(
    "listing", [b"[" * 100_000, b"[]", b'{"objects":[1]}', b'{"objects":{"a":1}}'], ids=["deep", "list", "numbers", "table"]
)
async def test_a_listing_that_is_none_is_told_of_as_the_agents_fault(tmp_path: Path, listing: bytes) -> None:
    async def get_file(_path: str, to: Path, **_: Any) -> None:
        await asyncio.to_thread(to.write_bytes, listing)

    odd: Any = SimpleNamespace(record=DeployedAgent(agent_name="odd", api_url="http://odd"), get_file=get_file)
    with pytest.raises(AgentFailedError, match="does not list its objects"):
        await changelogs.fetched(odd, tmp_path, known=KNOWN, limits=QUICK, corner="/ext/staging/corner")
