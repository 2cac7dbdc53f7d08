"""The provider against the conformance kit, as root and as an ordinary user."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from agent_env.sandboxes.conformance import CASES, Bench, Result, Subject, Verdict, run_cases
from tests.rootfs import images
from tests.rootfs.images import WAYS, act, busybox, provider
from tests.rootfs.test_images import folder
from tests.sandboxes import people

assert folder


@pytest.mark.timeout(600)
@pytest.mark.parametrize("way", WAYS)
def test_it_conforms(way: str, folder: Path) -> None:
    image = busybox(folder, Cmd=None)

    async def scenario(world: people.World) -> list[tuple[str, str, str]]:
        subject = Subject("rootfs", lambda: provider(world), image=image)
        # The keeper is an interpreter of its own, and this one may lie where an ordinary user can't look.
        unable = {"egress.allowlist"} if not os.access(sys.executable, os.X_OK) else set()
        cases = [case for case in CASES if not case.needs & unable]
        found: list[Verdict] = [verdict async for verdict in run_cases(Bench(subject), cases, jobs=4)]
        assert images.left(world) == []
        assert sum(1 for verdict in found if verdict.result is Result.PASSED) >= 80
        return [(verdict.case.id, verdict.result.value, verdict.detail) for verdict in found if verdict.result is Result.FAILED]

    assert act(way, scenario, prepare=people.open_tunnels if way != "root" and os.geteuid() == 0 else lambda: None) == []
