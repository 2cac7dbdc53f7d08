"""Providers by name, and the bare host behind the same contract."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from agent_env.documents.network import NetworkMode, NetworkPolicy
from agent_env.errors import PlaceLostError, UnsupportedError, UserError
from agent_env.places import Command, Ending, Upload
from agent_env.sandboxes import Level, Provider, names, provider
from agent_env.sandboxes.confined.processes import marked
from tests.sandboxes.people import MINE, spec


def test_an_unknown_provider_is_told_with_a_near_spelling(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="did you mean 'local'"):
        provider("locla", state_root=tmp_path)
    with pytest.raises(UserError, match="there are local"):
        provider("zzz", state_root=tmp_path)
    assert {"local", "unsafe_host"} <= set(names())


def test_a_chain_of_providers_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="such as 'local'"):
        provider("local,modal", state_root=tmp_path)


@pytest.mark.parametrize(("options", "said"), [({"netwrk": "auto"}, "no option"), ({"network": "fast"}, "can't be 'fast'")])
def test_an_option_that_the_provider_does_not_have_is_refused(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        provider("local", state_root=tmp_path, options=options)


def _commands() -> Iterator[bytes]:
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            yield (folder / "cmdline").read_bytes()


LASTING = tuple(str(10_000_000 + 2 * os.getpid() + number) for number in (0, 1))
"""Seconds that nobody else's `sleep` of this machine lasts."""


async def _bare(root: Path) -> dict[str, Any]:
    async with contextlib.aclosing(provider("unsafe_host", state_root=root / "state")) as bare:
        return await _used(bare)


async def _used(bare: Provider) -> dict[str, Any]:
    found: dict[str, Any] = {"notes": (await bare.capabilities()).notes}
    with pytest.raises(UnsupportedError, match="'unsafe_host' can't hold"):
        await bare.create(spec(f"{MINE}-bare", network=NetworkPolicy(mode=NetworkMode.NONE)))
    sandbox = await bare.create(spec(f"{MINE}-bare"))
    place = await sandbox.machine()
    found["levels"] = sandbox.levels
    found["work"] = Path(str(sandbox.info.facts["work_dir"]))
    found["said"] = (await place.run(Command(["sh", "-c", "pwd; echo $CANARY $HOME; cat /proc/sys/kernel/random/boot_id"]))).stdout.decode()
    await place.put([Upload(PurePosixPath(f"{found['work']}/f"), b"x")])
    slept = await place.run(Command(["sh", "-c", f"(setsid sleep {LASTING[0]} &) ; env -i setsid sleep {LASTING[1]} & sleep 0.1"]))
    assert slept.ending is Ending.EXITED
    await sandbox.aclose()
    again = await bare.attach(f"{MINE}-bare", epoch=2, token=f"t-{MINE}-bare")
    await again.aclose()
    assert [info.sandbox_id async for info in bare.list({"agentenv.home": "h"})] == [f"{MINE}-bare"]
    assert await bare.destroy(f"{MINE}-bare")
    assert not await bare.destroy(f"{MINE}-bare")
    with pytest.raises((PlaceLostError, UserError)):
        await bare.attach(f"{MINE}-bare", epoch=3, token="")
    return found


def test_the_bare_host_says_loudly_what_it_is_and_still_cleans_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_ENV_LOCAL_SANDBOX_DIR", str(tmp_path / "work"))
    monkeypatch.setenv("CANARY", "not for tasks")
    found = asyncio.run(_bare(tmp_path))
    assert "NOT A SANDBOX" in found["notes"][0]
    assert found["levels"]["processes"] is Level.NONE
    work, canary_and_home, boot = found["said"].splitlines()
    assert work == str(found["work"])
    assert canary_and_home == str(found["work"])
    assert boot == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert list(marked(f"{MINE}-bare")) == []
    assert not {f"sleep\0{seconds}\0".encode() for seconds in LASTING} & set(_commands())
    assert list((tmp_path / "work").iterdir()) == []
