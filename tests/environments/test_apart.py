"""A gateway environment on a provider whose sandboxes are containers, here `rootfs`: a sandbox each, and ways between them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from agent_env.environments.contract import LiveEnvironment
from agent_env.places import View
from agent_env.waiting import poll
from tests.environments.bench import Deployed, plan, run, standing
from tests.environments.test_gateway_environment import changed, listed


@pytest.fixture(scope="module")
def office(python_base: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    """A server behind a gateway."""
    with standing(tmp_path_factory.mktemp("apart") / "state", plan("tickets", provider="gateway"), provider="rootfs") as made:
        yield made


async def supervisor(live: LiveEnvironment) -> psutil.Process:
    """The process that keeps the gateway's server process, as this machine numbers it."""
    (entry,) = [entry for entry in await (await live.place()).ledger() if entry.attempt == "image"]
    inside = [each for each in psutil.process_iter(["cmdline"]) if each.info["cmdline"] and "agent_env.gateway" in each.info["cmdline"]]
    (found,) = [each for each in inside if _numbers(each.pid)[-1] == entry.pid and each.parent() not in inside]
    return found


def _numbers(pid: int) -> list[int]:
    """Of a process in each of the namespaces that it is in, this machine's first."""
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("NSpid:"))
    return [int(word) for word in line.split()[1:]]


def test_a_gateway_whose_first_process_was_killed_is_started_again_in_its_place_and_knows_what_it_knew(office: Deployed) -> None:
    async def body() -> None:
        async with office.found() as (_, live):
            await live.control.invoke("urn:agentenv:disable-tool/v1", {"role": "clerk", "tools": ["tickets_take"]})
            before, place = await live.life(), await live.place()  # type: ignore[attr-defined]
            os.kill((await supervisor(live)).pid, signal.SIGKILL)
            now = await poll(lambda: changed(live, before), within_seconds=60, what="another life of the gateway")
            assert now.ended == {}
            assert (await live.place()).id == place.id
            clerk = await live.agent_access("clerk", view=View.PROCESS)
            assert "tickets_take" not in await listed(clerk)
            assert "tickets_count" in await listed(clerk)

    run(body())
