"""What images may be, and that none of them reaches out of its sandbox."""

from __future__ import annotations

import itertools
import os
import platform
from pathlib import Path, PurePosixPath

import pytest

from agent_env.errors import ImageNotFoundError, ImagePlatformError, LaunchError, UnsupportedError
from agent_env.places import Command, Upload
from tests.container_engine import archive_of, busybox_root
from tests.images.laboratory import layout, tar_of
from tests.rootfs import images
from tests.rootfs.images import SANDBOX, WAYS, act, busybox, link, provider, said, spec
from tests.sandboxes.people import World

MANY = pytest.mark.skipif(os.geteuid() != 0, reason="agentenv-capability-missing: users.many")


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that every user can read."""
    made = tmp_path_factory.mktemp("images")
    for path in (made, *made.parents):
        if path.owner() == Path("/tmp").owner() and path.stat().st_uid == os.geteuid() and str(path).startswith("/tmp/"):
            path.chmod(0o755)
    return made


@pytest.mark.parametrize("root", ["overlay", "copy"])
@pytest.mark.parametrize("way", WAYS)
def test_a04_the_image_is_what_a_place_sees(way: str, root: str, folder: Path) -> None:
    image = busybox(
        folder, archive_of({"only/inside": b"42"}), WorkingDir="/made/for/work", Volumes={"/data": {}}, Env=["PATH=/bin", "A=1"]
    )

    async def scenario(world: World) -> str:
        script = "uname -s; cat /only/inside; ls -d /.dockerenv /data; pwd; echo $A $B; hostname; cat /etc/hostname; id -u; ls /usr 2>&1"
        given = spec(image, env={"B": "2"}, secrets={"S": "canary"})
        done = await said(provider(world, root=root), given, "sh", "-c", script + "; echo $S; touch /bin/new /x && echo written")
        assert images.left(world) == []
        return done.stdout.decode()

    lines = act(way, scenario).splitlines()
    assert lines[0] == "Linux"
    assert lines[1:] == [
        "42/.dockerenv", "/data", "/made/for/work", "1 2", SANDBOX, SANDBOX, "0",
        "ls: /usr: No such file or directory", "canary", "written",
    ]  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_an_image_is_never_changed_by_its_sandboxes(way: str, folder: Path) -> None:
    image = busybox(folder)

    async def scenario(world: World) -> tuple[bytes, bytes]:
        made = provider(world)
        await said(made, spec(image), "sh", "-c", "echo changed > /etc/passwd; rm -r /home; rm /bin/cat")
        again = await said(made, spec(image, "rootfs-2"), "sh", "-c", "cat /etc/passwd; ls -d /home")
        return again.stdout, again.stderr

    out, _ = act(way, scenario)
    assert out.startswith(b"root:x:0:0")
    assert out.endswith(b"/home\n")


LINKED = ("etc", "proc", "dev", ".agentenv", "etc/hosts", "etc/resolv.conf", ".dockerenv")
NEEDED = {"bin/sh", "bin/ls", "bin/sleep"}
LED_TO = ("/oldroot/etc", "/", "../../../../oldroot/tmp", "etc", "/proc/1/root/etc")


@pytest.mark.parametrize("root", ["overlay", "copy"])
def test_links_of_an_image_lead_nowhere_outside(root: str, folder: Path) -> None:
    cases = {}
    whole = {path: content for path, content in busybox_root().items() if not isinstance(content, str) or path in NEEDED}
    for name, target in itertools.product(LINKED, LED_TO):
        files = {path: content for path, content in whole.items() if path != name and not path.startswith(f"{name}/")}
        links = {"Cmd": images.STAYS, "Env": ["PATH=/bin"], "name": f"image-{len(cases)}"}
        cases[name, target] = images.archive(folder, archive_of(files), link(name, target), **links)

    async def scenario(world: World) -> dict[tuple[str, str], str]:
        found, made = {}, provider(world, root=root)
        for case, image in cases.items():
            try:
                found[case] = (await said(made, spec(image), "sh", "-c", "ls /proc/self/fd > /dev/null && echo lives")).stdout.decode()
            except UnsupportedError as error:
                found[case] = error.message
        assert images.left(world) == []
        return found

    before = _own_etc()
    answers = act(WAYS[0], scenario)
    assert {case: answer for case, answer in answers.items() if "lives" not in answer and "circle" not in answer} == {}
    assert _own_etc() == before


def _own_etc() -> dict[str, int]:
    """When this machine's own files were changed."""
    return {name: (Path("/etc") / name).stat().st_mtime_ns for name in ("hosts", "hostname", "resolv.conf", "passwd", "group")}


@MANY
def test_a05_an_image_with_a_user_runs_as_that_user_and_is_probed_as_root(folder: Path) -> None:
    secret = archive_of({"app": None, "app/secret": b"s"}, modes={"app/secret": 0o600})
    image = busybox(folder, secret, User="worker", WorkingDir="/home/worker")

    async def scenario(world: World) -> list[object]:
        made = provider(world)
        sandbox = await made.create(spec(image))
        place = await sandbox.machine()
        script = "id -u; id -g; id -G; cat /app/secret; touch mine && stat -c %u mine; echo $HOME; grep CapEff /proc/self/status"
        own = await place.run(Command(["sh", "-c", script]))
        root = await place.run(Command(["sh", "-c", "id -u; cat /app/secret"], user="0"))
        read = await place.read(PurePosixPath("/app/secret"))
        await place.put([Upload(PurePosixPath("/work/deep/file"), b"x")])
        written = await place.stat([PurePosixPath("/work/deep/file")])
        await sandbox.aclose()
        await made.destroy(SANDBOX)
        return [own.stdout.decode(), own.stderr.decode(), root.stdout.decode(), read, written[PurePosixPath("/work/deep/file")].uid]

    own, refused, root, read, owner = act("root", scenario)
    assert own.splitlines() == ["1001", "1001", "1001 1500", "1001", "/home/worker", "CapEff:\t0000000000000000"]
    assert "Permission denied" in refused
    assert (root.splitlines(), read, owner) == (["0", "s"], b"s", 1001)


def test_a_scratch_image_lives_without_a_shell(folder: Path) -> None:
    program = busybox_root()["bin/busybox"]
    image = images.archive(folder, tar_of(("busybox", program), mode=0o755), Entrypoint=["/busybox", "sleep"], Cmd=["100000"])

    async def scenario(world: World) -> list[object]:
        made = provider(world)
        sandbox = await made.create(spec(image))
        place = await sandbox.machine()
        await place.put([Upload(PurePosixPath("/a/b"), b"content")])
        seen = [entry.path.name async for entry in place.walk(PurePosixPath("/a"))]
        runs = [(entry.argv0, entry.attempt) for entry in await place.ledger() if entry.running]
        missing = await place.run(Command(["/busybox", "cat", "/a/b"]))
        await sandbox.aclose()
        await made.destroy(SANDBOX)
        return [seen, runs, missing.stdout]

    assert act(WAYS[-1], scenario) == [["b"], [("/busybox", "image")], b"content"]


def test_an_image_says_its_labels_and_ports_before_a_sandbox_is_made_of_it(folder: Path) -> None:
    image = busybox(folder, Labels={"agentenv.mcp-path": "/v2/mcp"}, ExposedPorts={"9100/tcp": {}})

    async def scenario(world: World) -> None:
        config = await provider(world).image_config(image, lambda _: None)
        assert (config.labels, config.exposed_ports) == ({"agentenv.mcp-path": "/v2/mcp"}, ("9100/tcp",))
        assert images.left(world) == []

    act(WAYS[0], scenario)


def test_an_image_without_a_command_is_held(folder: Path) -> None:
    image = busybox(folder, Cmd=None)

    async def scenario(world: World) -> bytes:
        return (await said(provider(world), spec(image), "echo", "here")).stdout

    assert act(WAYS[0], scenario) == b"here\n"


def test_a_command_that_can_not_be_started_leaves_nothing(folder: Path) -> None:
    image = busybox(folder, Cmd=["/no/such/program"])

    async def scenario(world: World) -> str:
        with pytest.raises(LaunchError, match="/no/such/program") as caught:
            await provider(world).create(spec(image))
        assert images.left(world) == []
        return caught.value.message

    assert "can't be run" in act(WAYS[0], scenario)


def test_another_machines_image_is_a_clear_error(folder: Path) -> None:
    other = "arm64" if platform.machine() == "x86_64" else "amd64"
    image = busybox(folder, architecture=other)

    async def scenario(world: World) -> str:
        with pytest.raises(ImagePlatformError) as caught:
            await provider(world).create(spec(image))
        assert images.left(world) == []
        return caught.value.message

    assert other in act(WAYS[0], scenario)


def test_a_missing_image_leaves_nothing(folder: Path) -> None:
    layout(folder / "oci", [archive_of({"a": b""})], name="there")

    async def scenario(world: World) -> None:
        with pytest.raises(ImageNotFoundError):
            await provider(world).create(spec(f"oci:{folder / 'oci'}:absent"))
        assert images.left(world) == []

    act(WAYS[0], scenario)


def test_an_oci_layout_is_an_image_too(folder: Path) -> None:
    layout(folder / "oci", [archive_of(busybox_root())], name="busybox", Cmd=images.STAYS, Env=["PATH=/bin"])

    async def scenario(world: World) -> bytes:
        return (await said(provider(world), spec(f"oci:{folder / 'oci'}:busybox"), "echo", "here")).stdout

    assert act(WAYS[0], scenario) == b"here\n"


@pytest.mark.parametrize("root", ["overlay", "copy"])
@pytest.mark.parametrize("way", WAYS)
def test_fi03_a_read_only_root_can_not_be_written_and_the_images_volumes_can(way: str, root: str, folder: Path) -> None:
    layers = archive_of({"data/kept": b"of the image\n", "data/in": None, "srv/real": None}), link("led", "srv/real")
    names = ("/data", "/data/in", "/led", "/made/for/it", "/", "/bin/sh")
    image = busybox(folder, *layers, Volumes={name: {} for name in names})
    script = "touch /x; for f in /data /data/in /led /srv/real /made/for/it /dev/shm; do echo y > $f/y && cat $f/y; done; cat /data/kept"

    async def scenario(world: World) -> tuple[bytes, bytes]:
        done = await said(provider(world, root=root, read_only=True), spec(image), "sh", "-c", f"{script}; touch /made/x /srv/x")
        assert images.left(world) == []
        return done.stdout, done.stderr

    out, err = act(way, scenario)
    assert out == b"y\n" * 6 + b"of the image\n"
    assert err.count(b"Read-only") == 3, err
