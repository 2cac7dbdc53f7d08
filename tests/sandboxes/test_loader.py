"""F13: what an earlier command leaves for the loader of programs does not get into later ones."""

from __future__ import annotations

import pytest

from agent_env.places import Command
from tests.sandboxes.people import MINE, WAYS, World, act, spec

PLANT = (
    "echo /app/evil.so 2>/dev/null > /etc/ld.so.preload; rm -f /lib /lib64 /bin 2>/dev/null; "
    "mv /lib64 /lib65 2>/dev/null; mv /bin /bin2 2>/dev/null; true"
)


async def planted(world: World) -> tuple[bytes, bytes, bool]:
    sandbox = await world.provider().create(spec(f"{MINE}-loader"))
    try:
        place = await sandbox.machine()
        await place.run(Command(["sh", "-c", PLANT]))
        done = await place.run(Command(["/bin/sh", "-c", "cat /etc/ld.so.preload; echo fine"]))
        await sandbox.aclose()
    finally:
        await world.provider().destroy(f"{MINE}-loader")
    return done.stdout, done.stderr, done.ok


@pytest.mark.parametrize("way", WAYS)
def test_f13_no_command_leaves_a_library_or_a_loader_for_the_programs_of_later_ones(way: str) -> None:
    assert act(way, planted) == (b"fine\n", b"", True)
