"""Unpacked images: each content once, whole or not at all, from wherever it comes, removed when nobody needs it."""

from __future__ import annotations

import asyncio
import gzip
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from agent_env.errors import (
    ImageNotFoundError,
    ImagePlatformError,
    ImageUnavailableError,
    StorageError,
    TransferError,
    UnsupportedError,
    UserError,
)
from agent_env.images import ImageStore
from tests.images.laboratory import QUICK, door, entry, layout, publish, saved, tar_of, until
from tests.sandboxes.people import in_child

SYM = b"2"
BASE = tar_of(("etc/a", b"base"), ("etc/b", b"base"), ("bin", entry(SYM, linkname="usr/bin")))


def upper() -> bytes:
    return tar_of(("etc/.wh.a", b""), ("etc/c", os.urandom(3000)))


def store(folder: Path, **options) -> ImageStore:
    return ImageStore(folder / "state", **{"limits": QUICK, **options})


def everything(folder: Path) -> list[str]:
    """What is in the store but for locks and empty folders."""
    return sorted(str(path.relative_to(folder)) for path in (folder / "state/images").rglob("*") if not path.is_dir())


async def test_an_image_of_a_registry_is_unpacked_once_and_needs_no_network_then(registry: str, tmp_path: Path) -> None:
    top = upper()
    image = publish(registry, [BASE, top], Entrypoint=["/bin/sh"], Env=["A=1"], User="33", WorkingDir="/w", ExposedPorts={"80/tcp": {}})
    with door(registry) as gate:
        name = image.name.replace(registry, gate.address)
        found = await store(tmp_path).unpacked(name)
        asked = len(gate.requests)
        again = await store(tmp_path).unpacked(name)
        assert len(gate.requests) == asked
    assert again == found
    assert (found.id, found.digest) == (image.id, image.digest)
    assert sorted(path.name for path in (found.root / "etc").iterdir()) == ["b", "c"]
    assert (found.root / "bin").is_symlink()
    assert (found.config.entrypoint, found.config.env, found.config.user, found.config.workdir) == (("/bin/sh",), {"A": "1"}, "33", "/w")
    assert len(found.layers) == 2
    assert not [name for name in everything(tmp_path) if "blobs/" in name or "scratch/" in name]


async def test_layers_that_images_share_are_fetched_and_kept_once(registry: str, tmp_path: Path) -> None:
    one, two = publish(registry, [BASE, upper()]), publish(registry, [BASE, upper()])
    with door(registry) as gate:
        roots = [(await store(tmp_path).unpacked(image.name.replace(registry, gate.address))).root for image in (one, two)]
        fetched = [request.rpartition("/")[2] for request in gate.blobs()]
    assert fetched.count(one.blobs[0]) == 1
    assert len({(root / "etc/b").stat().st_ino for root in roots}) == 1


@pytest.mark.parametrize("kind", ["oci", "docker-archive", "docker-archive.gz"])
async def test_a_layout_folder_and_a_saved_archive_give_the_same_tree(tmp_path: Path, kind: str) -> None:
    top = upper()
    if kind == "oci":
        place = f"oci:{layout(tmp_path / 'layout', [BASE, top], Cmd=['x'])}"
    else:
        archive = tmp_path / "image.tar"
        data = saved([BASE, top], names=["team/x:1"], Cmd=["x"])
        archive.write_bytes(gzip.compress(data) if kind.endswith("gz") else data)
        place = f"docker-archive:{archive}"
    found = await store(tmp_path).unpacked(place)
    assert sorted(path.name for path in (found.root / "etc").iterdir()) == ["b", "c"]
    assert found.config.cmd == ("x",)
    assert (await store(tmp_path).unpacked(place)).id == found.id


async def test_one_of_several_images_is_named_after_a_colon(tmp_path: Path) -> None:
    folder = layout(layout(tmp_path / "l", [BASE], name="one", Cmd=["1"]), [BASE], name="two", Cmd=["2"])
    assert (await store(tmp_path).unpacked(f"oci:{folder}:two")).config.cmd == ("2",)
    with pytest.raises(ImageNotFoundError) as caught:
        await store(tmp_path).unpacked(f"oci:{folder}:three")
    assert "one, two" in (caught.value.hint or "")
    (tmp_path / "a.tar").write_bytes(saved([BASE], names=["team/x:1", "team/y:2"], Cmd=["x"]))
    assert (await store(tmp_path).unpacked(f"docker-archive:{tmp_path / 'a.tar'}:team/y:2")).config.cmd == ("x",)
    with pytest.raises(ImageNotFoundError, match="holds no image team/z"):
        await store(tmp_path).unpacked(f"docker-archive:{tmp_path / 'a.tar'}:team/z")


async def test_an_image_of_the_engine_is_unpacked_as_the_engine_would_show_it(here, tmp_path: Path) -> None:
    async with here() as lab:
        steps = "RUN mkdir /d && echo 1 > /d/gone && echo 2 > /d/kept && chmod 4711 /d/kept\nRUN rm /d/gone\n"
        built = await lab.images().build(lab.request(f"FROM BASE\n{steps}USER worker\nVOLUME /data\n"))
        places = store(tmp_path, images=lab.images())
        found = await places.unpacked(f"{lab.name}:1")
        assert [path.name for path in (found.root / "d").iterdir()] == ["kept"]
        assert (found.root / "d/kept").stat().st_mode & 0o7777 == (0o4711 if os.geteuid() == 0 else 0o711)
        assert (found.config.user, found.config.volumes) == ("worker", ("/data",))
        assert found.id == built.id
        assert await places.unpacked(f"docker-daemon:{lab.name}:1") == replace(found, location=f"docker-daemon:{lab.name}:1")
        with pytest.raises(ImageNotFoundError, match="the container engine holds no image"):
            await places.unpacked("docker-daemon:agentenv-test/absent:1")


async def test_what_is_missing_or_no_image_says_so(tmp_path: Path) -> None:
    (tmp_path / "bad.tar").write_bytes(b"nothing" * 1000)
    (tmp_path / "cut.tar").write_bytes(saved([BASE], names=["x:1"])[:3000])
    (tmp_path / "folder").mkdir()
    cases: dict[str, tuple[type[Exception], str]] = {
        "docker://127.0.0.1:1/x:1": (ImageUnavailableError, "can't be reached"),
        "local/x-0123456789ab:0123456789abcdef": (ImageNotFoundError, "in no registry"),
        "docker-daemon:x:1": (ImageUnavailableError, "no container engine"),
        f"oci:{tmp_path}/folder": (ImageNotFoundError, "no OCI layout"),
        f"docker-archive:{tmp_path}/absent": (ImageNotFoundError, "no archive"),
        f"docker-archive:{tmp_path}/bad.tar": (UnsupportedError, "no archive of images"),
        f"docker-archive:{tmp_path}/cut.tar": (UnsupportedError, "cut off|no archive"),
        "oci:": (UserError, "names no file"),
        "No": (UserError, "no image name"),
    }
    for place, (kind, word) in cases.items():
        with pytest.raises(kind, match=word):
            await store(tmp_path).unpacked(place)


async def test_im06_an_image_of_another_machine_is_refused_before_it_is_fetched(registry: str, tmp_path: Path) -> None:
    image = publish(registry, [BASE], architecture="s390x")
    with door(registry) as gate, pytest.raises(ImagePlatformError, match="made for linux/s390x, and this machine is"):
        await store(tmp_path).unpacked(image.name.replace(registry, gate.address))
    assert not [request for request in gate.blobs() if request.endswith(image.blobs[0])]
    with pytest.raises(ImagePlatformError, match="made for linux/amd64, not for linux/arm64"):
        await store(tmp_path).unpacked(f"oci:{layout(tmp_path / 'l', [BASE])}", platform="linux/arm64")


async def test_a_tag_that_moved_is_noticed_when_asked_and_the_old_one_serves_when_the_registry_is_away(
    registry: str, tmp_path: Path
) -> None:
    first = publish(registry, [BASE])
    repository = first.name.split("/", 1)[1].rpartition(":")[0]
    with door(registry) as gate:
        name = first.name.replace(registry, gate.address)
        assert (await store(tmp_path).unpacked(name)).id == first.id
        second = publish(registry, [BASE, upper()], repository=repository)
        assert (await store(tmp_path).unpacked(name)).id == first.id
        assert (await store(tmp_path).unpacked(name, newest=True)).id == second.id
    said: list[str] = []
    assert (await store(tmp_path).unpacked(name, newest=True, tell=lambda event: said.append(event.message))).id == second.id
    assert any("the one that is here is used" in text for text in said)


async def test_many_tasks_and_stores_that_want_one_image_fetch_it_once(registry: str, tmp_path: Path) -> None:
    image = publish(registry, [BASE, upper(), upper()])
    with door(registry) as gate:
        name = image.name.replace(registry, gate.address)
        found = await asyncio.gather(*(store(tmp_path).unpacked(name) for _ in range(12)))
        layers = [request for request in gate.blobs() if request.rpartition("/")[2] in image.blobs]
    assert len({one.root for one in found}) == 1
    assert len(layers) == len(set(layers)) == 3


async def test_what_is_altered_is_never_unpacked_and_leaves_nothing(registry: str, tmp_path: Path) -> None:
    image = publish(registry, [tar_of(("f", b"x"))], pack=lambda data: gzip.compress(data + b"\0" * 512))
    with pytest.raises(TransferError, match="where it should be"):
        await store(tmp_path).unpacked(image.name)
    assert everything(tmp_path) == []
    folder = layout(tmp_path / "l", [BASE])
    blob = max((folder / "blobs/sha256").iterdir(), key=lambda path: path.read_bytes()[:2] == b"\x1f\x8b")
    blob.write_bytes(blob.read_bytes()[:-20] + b"x" * 20)
    with pytest.raises(TransferError):
        await store(tmp_path).unpacked(f"oci:{folder}")
    assert everything(tmp_path) == []


async def test_a_cancelled_fetch_keeps_what_came_and_goes_on_from_there(registry: str, tmp_path: Path) -> None:
    image = publish(registry, [tar_of(("f", os.urandom(2_000_000)))])
    part = tmp_path / "state/images/unpacked/blobs"
    with door(registry, held=image.blobs[0]) as gate:
        name = image.name.replace(registry, gate.address)
        task = asyncio.create_task(store(tmp_path).unpacked(name))

        async def some_came() -> bool:
            return part.exists() and any(path.stat().st_size for path in part.iterdir())

        await until(some_came)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await some_came()
        gate.free.set()
        found = await store(tmp_path).unpacked(name)
    assert (found.root / "f").stat().st_size == 2_000_000
    assert [*part.iterdir()] == []


FETCH = """
import asyncio, sys
from pathlib import Path
from agent_env.images import ImageStore
asyncio.run(ImageStore(Path(sys.argv[1])).unpacked(sys.argv[2]))
"""


def killed_after(seconds: float, state: Path, place: str) -> None:
    child = subprocess.Popen([sys.executable, "-c", FETCH, state, place], stderr=subprocess.DEVNULL)
    try:
        child.wait(seconds)
    except subprocess.TimeoutExpired:
        child.send_signal(signal.SIGKILL)
        child.wait()


async def test_f01_kills_at_any_moment_leave_a_store_that_works_and_gc_takes_the_rest(tmp_path: Path) -> None:
    layers = [tar_of(*((f"d{n}/f{i}", os.urandom(400)) for i in range(600))) for n in range(4)]
    place = f"oci:{layout(tmp_path / 'l', layers)}"
    for moment in range(6):
        await asyncio.to_thread(killed_after, 0.2 + 0.08 * moment, tmp_path / "state", place)
    found = await store(tmp_path).unpacked(place)
    assert sum(1 for path in found.root.rglob("f*") if path.is_file()) == 2400
    await store(tmp_path).gc(everything=True)
    assert everything(tmp_path) == []


async def test_gc_removes_the_least_recently_used_above_the_budget_and_never_what_is_pinned(tmp_path: Path) -> None:
    places = store(tmp_path)
    names = [f"oci:{layout(tmp_path / f'l{n}', [BASE, tar_of(('f', os.urandom(10_000)))])}" for n in range(3)]
    found = [await places.unpacked(name, pinned_by=f"sandbox/{n}" if n == 0 else None) for n, name in enumerate(names)]
    planned = await places.gc(budget_bytes=25_000, dry_run=True)
    assert [record.id for record in planned.removed] == [found[1].id]
    freed = await places.gc(budget_bytes=25_000)
    assert [record.id for record in freed.removed] == [found[1].id]
    assert freed.bytes == 10_000
    assert [one.root.exists() for one in found] == [True, False, True]
    assert (found[0].root / "etc/b").read_text() == "base"
    assert [record.id for record in (await places.gc(everything=True)).removed] == [found[2].id]
    assert (await places.gc(everything=True, live=["sandbox/0"])).kept == 1
    places.release("sandbox/0")
    places.release("sandbox/0")
    hollow = await places.unpacked(f"oci:{layout(tmp_path / 'hollow', [tar_of()])}")
    assert {record.id for record in (await places.gc(everything=True)).removed} == {found[0].id, hollow.id}
    assert everything(tmp_path) == []


async def test_pins_of_owners_that_are_no_more_do_not_count(tmp_path: Path) -> None:
    places = store(tmp_path)
    await places.unpacked(f"oci:{layout(tmp_path / 'l', [BASE])}", pinned_by="gone")
    assert (await places.gc(everything=True)).kept == 1
    assert (await places.gc(everything=True, live=["another"])).kept == 0


async def test_f20_a_store_above_its_budget_makes_room_and_spares_the_newest(tmp_path: Path) -> None:
    places = store(tmp_path, limits=replace(QUICK, image_layers_bytes=1))
    one = await places.unpacked(f"oci:{layout(tmp_path / 'a', [tar_of(('a', b'a'))])}")
    two = await places.unpacked(f"oci:{layout(tmp_path / 'b', [tar_of(('b', b'b'))])}")
    assert [one.root.exists(), two.root.exists()] == [False, True]


async def test_f20_what_does_not_fit_is_refused_before_it_is_fetched(registry: str, tmp_path: Path) -> None:
    image = publish(registry, [BASE])
    with door(registry) as gate, pytest.raises(StorageError, match="must stay free"):
        await store(tmp_path, limits=replace(QUICK, image_free_bytes=1 << 60)).unpacked(image.name.replace(registry, gate.address))
    assert not [request for request in gate.blobs() if request.endswith(image.blobs[0])]


async def test_the_store_is_for_its_user_alone(tmp_path: Path) -> None:
    await store(tmp_path).unpacked(f"oci:{layout(tmp_path / 'l', [BASE])}")
    assert (tmp_path / "state/images/unpacked").stat().st_mode & 0o077 == 0


def test_an_ordinary_user_unpacks_uses_and_removes_what_no_user_may_write() -> None:
    layers = [
        tar_of(("shut", entry(b"5", mode=0)), ("shut/f", b"f"), ("su", entry(b"0", mode=0o4755, uid=0)), ("null", entry(b"3", devmajor=1))),
        upper(),
    ]

    def work() -> tuple[bool, list[str], tuple[str, ...], list[str]]:
        with tempfile.TemporaryDirectory() as made:
            folder = Path(made)
            places = store(folder)
            found = asyncio.run(places.unpacked(f"oci:{layout(folder / 'l', layers)}"))
            names = sorted(path.name for path in found.root.iterdir())
            asyncio.run(places.gc(everything=True))
            return found.owners, names, found.skipped, everything(folder)

    assert in_child(work, ordinary=True) == (False, ["etc", "shut", "su"], ("null",), [])


def test_unpacking_loads_no_client_of_an_engine() -> None:
    code = "import sys, agent_env.images.oci.store; print({'aiohttp', 'aiodocker', 'httpx', 'pydantic', 'sqlalchemy'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"
