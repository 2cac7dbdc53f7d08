"""FI-07: whatever a place has made of its tree, a copy of it ends, and lands nowhere but below its target."""

from __future__ import annotations

import shutil
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from agent_env.cli import copying, output, terminal
from agent_env.cli.copying import Copied, Remote
from agent_env.errors import TransferError
from agent_env.places import Command, Place
from tests.sandboxes.people import MINE, WAYS, World, act, spec

assert output, terminal  # imported now: where the libraries are, an ordinary user may not look

TREE = """
import os, socket
os.makedirs("/app/tree/deep")
os.chdir("/app/tree")
for name in (b"new\\nline", b"-rf", b"n" * 255, b"..x", b"sp ace", b"back\\\\slash"):
    open(name, "wb").write(b"data")
os.mkfifo("fifo")
os.symlink("/dev/zero", "zero")
os.symlink("../../../../../../../etc", "up")
os.symlink("loop", "loop")
socket.socket(socket.AF_UNIX).bind("socket")
folder = os.open("deep", os.O_RDONLY)
for _ in range(60):
    os.mkdir("d" * 200, dir_fd=folder)
    folder = os.open("d" * 200, os.O_RDONLY, dir_fd=folder)
os.close(os.open("bottom", os.O_CREAT | os.O_WRONLY, dir_fd=folder))
"""

SWAPPER = """
import os
os.makedirs("/app/race/real")
open("/app/race/real/file", "w").write("real")
os.symlink("/etc", "/app/race/link")
grows = open("/app/race/grows", "wb", 0)
print("on", flush=True)
os.chdir("/app/race")
while True:
    os.rename("real", "kept"); os.rename("link", "real"); os.rename("real", "link"); os.rename("kept", "real")
    grows.write(b"z" * 65536)
    if grows.tell() > 1 << 24: grows.truncate(0); grows.seek(0)
"""


def below(target: Path) -> list[Path]:
    return [path for path in target.rglob("*") if path.is_symlink() or not (path.is_dir() or path.is_file())]


async def copied(place: Place, path: str, target: Path) -> Copied:
    return await copying.copy_out(place, Remote("run", PurePosixPath(path), is_folder=False), target)


async def hostile(world: World) -> dict[str, Any]:
    target, found = world.home / "target", dict[str, Any]()
    target.mkdir()
    sandbox = await world.provider().create(spec(f"{MINE}-hostile"))
    try:
        place = await sandbox.machine()
        assert (await place.run(Command(["python3", "-c", TREE]))).ok
        tree = await copied(place, "/app/tree", target)
        found["tree"] = sorted(path.name for path in (target / "tree").iterdir() if path.is_file())
        found["skipped"] = " ".join(tree.skipped)
        found["above"] = (await copied(place, "/app/tree/../tree/..", target / "tree")).files
        shutil.rmtree(target / "tree" / "deep")
        swapper = await place.start(Command(["python3", "-c", SWAPPER], timeout_seconds=60))
        assert await anext(swapper.output()) == (1, b"on\n")
        for number in range(20):
            into = target / str(number)
            into.mkdir()
            await copied(place, "/app/race", into)
            found.setdefault("raced", set()).update(file.read_bytes() for file in into.rglob("file"))
            found.setdefault("etc", []).extend(into.rglob("passwd"))
            shutil.rmtree(into)
        await swapper.kill()
        await swapper.aclose()
        with pytest.raises(TransferError) as told:
            await copied(place, "/proc/self/pagemap", target)
        found["kernel"] = str(told.value)
        found["odd"] = below(target)
        await sandbox.aclose()
    finally:
        await world.provider().destroy(f"{MINE}-hostile")
    found["beside"] = sorted(path.name for path in world.home.iterdir())
    return found


@pytest.mark.parametrize("way", WAYS)
def test_fi07_a_hostile_tree_is_copied_as_far_as_it_is_files_and_nothing_of_it_lands_elsewhere(way: str) -> None:
    found = act(way, hostile)
    assert found["tree"] == sorted(["new\nline", "-rf", "n" * 255, "..x", "sp ace", "back\\slash"])
    for name in ("fifo", "zero", "up", "loop", "socket", "File name too long"):
        assert name in found["skipped"], name
    assert found["above"] >= len(found["tree"])
    assert found["raced"] <= {b"real"}
    assert found["etc"] == []
    assert found["odd"] == []
    assert found["beside"] == ["target"]
    assert "EFBIG" in found["kernel"] or "EACCES" in found["kernel"]
