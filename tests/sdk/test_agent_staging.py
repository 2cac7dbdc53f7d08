"""`staging/v1`: objects on the agent's own server, behind a path that nobody can guess."""

from __future__ import annotations

from pathlib import Path

import pytest
from agent_env_sdk.testing.agents import serve_agent_here
from agent_env_sdk.wire.agent_extensions import STAGING, find

from tests.sdk.agents import Plain

SECRET = "a" * 22
AT = f"/ext/staging/{SECRET}"


async def test_an_object_is_put_read_listed_and_removed_without_the_agents_token() -> None:
    async with serve_agent_here(Plain(), token="t") as agent:
        del agent.http.headers["authorization"]
        put = await agent.http.put(f"{agent.base}{AT}/one/a.bin", content=b"hello")
        assert (put.status_code, put.json()["size_bytes"], len(put.json()["sha256"])) == (201, 5, 64)
        got = await agent.http.get(f"{agent.base}{AT}/one/a.bin")
        assert (got.content, got.headers["etag"]) == (b"hello", put.json()["etag"])
        listed = (await agent.http.get(f"{agent.base}{AT}/")).json()["objects"]
        assert listed == [{"path": f"{SECRET}/one/a.bin", "size_bytes": 5, "etag": put.json()["etag"]}]
        assert (await agent.http.delete(f"{agent.base}{AT}/one/a.bin", headers={"if-match": '"other"'})).status_code == 412
        assert (await agent.http.delete(f"{agent.base}{AT}/one/a.bin", headers={"if-match": got.headers["etag"]})).status_code == 204
        assert (await agent.http.get(f"{agent.base}{AT}/one/a.bin")).status_code == 404


async def test_a_form_puts_its_file_below_the_path() -> None:
    async with serve_agent_here(Plain(), token="t") as agent:
        form = {"data": {"key": "one/a.bin"}, "files": {"file": ("a.bin", b"hello")}}
        put = await agent.http.post(f"{agent.base}{AT}", **form)
        assert (put.status_code, put.json()["path"], put.json()["size_bytes"]) == (201, f"{SECRET}/one/a.bin", 5)
        assert (await agent.http.get(f"{agent.base}{AT}/one/a.bin")).content == b"hello"
        for wrong in ({"data": {"key": "../b"}, "files": form["files"]}, {"data": {"key": "b"}}, {"files": form["files"]}):
            assert (await agent.http.post(f"{agent.base}{AT}", **wrong)).status_code == 400


@pytest.mark.parametrize(
    ("verb", "path", "status"),
    [
        ("PUT", "/ext/staging/short/a", 404),
        ("GET", f"{AT}/none", 404),
        ("DELETE", f"{AT}/none", 404),
        ("PUT", f"{AT}/a//b", 400),
        ("PUT", f"{AT}/%2e%2e/b", 400),
        ("PUT", f"{AT}/{'x' * 1100}", 400),
        ("PUT", f"{AT}/{'x' * 300}", 400),
        ("PUT", f"{AT}/folder/", 400),
        ("PUT", f"{AT}/file/below", 409),
        ("POST", f"{AT}/a", 400),
        ("PATCH", f"{AT}/a", 405),
    ],
)
async def test_what_does_not_fit_is_refused(verb: str, path: str, status: int) -> None:
    async with serve_agent_here(Plain()) as agent:
        assert (await agent.http.put(f"{agent.base}{AT}/file", content=b"1")).status_code == 201
        assert (await agent.http.request(verb, agent.base + path, content=b"x")).status_code == status


async def test_all_objects_together_have_a_limit_also_after_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTENV_STAGING_MAX_BYTES", "10")
    async with serve_agent_here(Plain(), state=tmp_path) as agent:
        assert (await agent.http.put(f"{agent.base}{AT}/a", content=b"123456")).status_code == 201
        assert (await agent.http.put(f"{agent.base}{AT}/b", content=b"12345")).status_code == 507
        assert (await agent.http.put(f"{agent.base}{AT}/a", content=b"1234")).status_code == 201
    async with serve_agent_here(Plain(), state=tmp_path) as agent:
        assert (await agent.http.put(f"{agent.base}{AT}/b", content=b"1234567")).status_code == 507
        assert (await agent.http.delete(f"{agent.base}{AT}/")).status_code == 204
        assert (await agent.http.put(f"{agent.base}{AT}/b", content=b"1234567890")).status_code == 201


async def test_the_card_tells_of_it_unless_it_is_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serve_agent_here(Plain()) as agent:
        card = await agent.card()
        assert (card.capabilities.extensions or [])[-1].uri == STAGING
        assert (card.capabilities.extensions or [])[-1].params == {"endpoint": "/ext/staging", "max_bytes": 17179869184}
    monkeypatch.setenv("AGENTENV_STAGING_MAX_BYTES", "0")
    async with serve_agent_here(Plain()) as agent:
        assert find(await agent.card(), STAGING) is None
        assert (await agent.http.put(f"{agent.base}{AT}/a", content=b"1")).status_code == 404
