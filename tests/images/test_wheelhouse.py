"""Wheels are fetched on the host, once; what is built from them needs no network."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from agent_env.errors import DeadlineError, TransferError, UnsupportedError
from agent_env.images import BuildContext, Wheelhouse
from tests.busy import lasting
from tests.images.laboratory import QUICK

PROJECT = """
[build-system]
requires = []
build-backend = "made"
backend-path = ["."]
"""
BACKEND = """
import zipfile
FILES = {
    "our_tool.py": "print('ours')",
    "our_tool-1.0.dist-info/METADATA": "Metadata-Version: 2.1\\nName: our-tool\\nVersion: 1.0\\n",
    "our_tool-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\\nGenerator: x\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
    "our_tool-1.0.dist-info/RECORD": "",
}
def build_wheel(folder, config_settings=None, metadata_directory=None):
    name = "our_tool-1.0-py3-none-any.whl"
    with zipfile.ZipFile(f"{folder}/{name}", "w") as wheel:
        for path, text in FILES.items():
            wheel.writestr(zipfile.ZipInfo(path), text)
    return name
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project of ours that builds with nothing but Python."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "pyproject.toml").write_text(PROJECT)
    (folder / "made.py").write_text(BACKEND)
    return folder


def offline(tmp_path: Path) -> dict[str, str]:
    """Variables with which pip finds nothing anywhere."""
    return {**os.environ, "PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull, "HOME": str(tmp_path)}


async def test_our_own_wheel_is_made_pinned_kept_and_installed_in_a_build_without_network(here, tmp_path: Path, project: Path) -> None:
    house = Wheelhouse(tmp_path / "state", environ=offline(tmp_path))
    wheels = await house.fetch([], python="3.12", projects=[project])
    assert wheels.names == ("our_tool-1.0-py3-none-any.whl",)
    assert wheels.requirements.startswith("our_tool==1.0 --hash=sha256:")
    async with here() as lab:
        request = lab.request("FROM BASE\nCOPY wheels /wheels\nRUN unzip -q /wheels/our_tool*.whl -d /site && cat /site/our_tool.py\n")
        shutil.copytree(wheels.folder, request.context.root / "wheels")
        again = replace(request, context=BuildContext.of(request.context.root))
        await lab.images().build(again, lab.told)
        assert "print('ours')" in [event.message for event in lab.events]
    assert house.gc() == ()
    assert house.gc(everything=True, dry_run=True) == house.gc(everything=True) == (wheels.folder.name,)
    assert [*wheels.folder.parent.iterdir()] == []


async def test_a_lock_is_fetched_as_it_is_and_checked(tmp_path: Path, project: Path) -> None:
    """Nothing that it leaves out is fetched; neither a wheel whose digest is another one, nor one without a digest."""
    found = tmp_path / "found"
    found.mkdir()
    (made,) = (await Wheelhouse(tmp_path / "made", environ=offline(tmp_path)).fetch([], python="3.12", projects=[project])).folder.glob(
        "*.whl"
    )
    wheels = []
    for name, version in (("our_tool", "1.0"), ("other", "2")):
        wheels.append(found / f"{name}-{version}-py3-none-any.whl")
        with zipfile.ZipFile(wheels[-1], "w") as archive:
            text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nRequires-Dist: nowhere-to-be-had\n"
            archive.writestr(f"{name}-{version}.dist-info/METADATA", text)
            archive.writestr(f"{name}-{version}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            archive.writestr(f"{name}-{version}.dist-info/RECORD", "")
    digest = hashlib.sha256(wheels[1].read_bytes()).hexdigest()
    house = Wheelhouse(tmp_path / "state", environ=offline(tmp_path) | {"PIP_FIND_LINKS": str(found)})
    own = f"{made}[more]"
    fetched = await house.fetch([f"other==2 --hash=sha256:{digest}", own], python="3.12")
    assert fetched.names == tuple(sorted(("other-2-py3-none-any.whl", made.name)))
    assert f"other==2 --hash=sha256:{digest}\n" in fetched.requirements
    assert (fetched.folder / made.name).read_bytes() == made.read_bytes()
    elsewhere = shutil.copy(made, tmp_path)
    nowhere = Wheelhouse(tmp_path / "state", environ={"PATH": str(tmp_path)})
    assert await nowhere.fetch([f"other==2 --hash=sha256:{digest}", f"{elsewhere}[more]"], python="3.12") == fetched
    with pytest.raises(TransferError, match="HASHES"):
        await house.fetch([f"other==2 --hash=sha256:{'0' * 64}", own], python="3.12")
    with pytest.raises(TransferError, match="our_tool"):
        await house.fetch([f"other==2 --hash=sha256:{digest}", "our_tool==1.0"], python="3.12")


async def test_what_can_not_be_had_says_why_in_pips_words_and_leaves_nothing(tmp_path: Path) -> None:
    house = Wheelhouse(tmp_path / "state", environ=offline(tmp_path))
    with pytest.raises(TransferError, match="no-such-package-anywhere"):
        await house.fetch(["no-such-package-anywhere==1"], python="3.12")
    assert [*(tmp_path / "state/images/wheelhouses").iterdir()] == []


async def test_a_pip_of_the_folder_where_the_user_stands_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/pip.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    monkeypatch.chdir(tmp_path / "tree")
    with pytest.raises((TransferError, UnsupportedError)):
        await Wheelhouse(tmp_path / "state", environ=offline(tmp_path) | {"PATH": ""}).fetch(["no-such-package-anywhere==1"], python="3.12")
    assert not (tmp_path / "ran").exists()


async def test_an_index_that_can_not_be_reached_is_told_once_with_what_helps(tmp_path: Path) -> None:
    away = {**offline(tmp_path), "PIP_NO_INDEX": "0", "PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "1"}
    with pytest.raises(TransferError, match="no-such-package-anywhere") as caught:
        await Wheelhouse(tmp_path / "state", environ=away).fetch(["no-such-package-anywhere==1"], python="3.12")
    assert "Retrying" not in caught.value.message
    assert "PIP_INDEX_URL" in str(caught.value.hint)


@pytest.mark.parametrize("ask", [{"platform": "linux/s390x"}, {"libc": "bionic"}, {"platform": "windows/amd64"}])
async def test_a_platform_without_wheels_is_refused_at_once(tmp_path: Path, ask: dict[str, str]) -> None:
    with pytest.raises(UnsupportedError, match="no wheels"):
        await Wheelhouse(tmp_path / "state").fetch(["x"], python="3.12", **ask)


def fake_pip(folder: Path, text: str) -> dict[str, str]:
    """A PATH on which pip is this script."""
    for name in ("uv", "pip3"):
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    return {**os.environ, "PATH": f"{folder}:/usr/bin:/bin"}


@pytest.fixture
def no_module_pip(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """This environment has no pip of its own, as those that uv makes."""
    import agent_env.images.wheelhouse as room

    monkeypatch.setattr(room, "_PIPS", tuple(command for command in room._PIPS if command[0] != sys.executable))
    return lambda: None


async def test_a_fetch_that_hangs_is_stopped_with_all_its_children_and_leaves_no_folder(tmp_path: Path, no_module_pip: object) -> None:
    work = f"echo $TMPDIR > {tmp_path}/unpacking; pwd > {tmp_path}/cwd; echo $$ > {tmp_path}/pid; sleep 500 & wait"
    environ = fake_pip(tmp_path, f'case "$*" in *--version*) exit 0;; esac\n{work}')
    house = Wheelhouse(tmp_path / "state", environ=environ, limits=replace(QUICK, wheelhouse_seconds=lasting(0.5)))
    with pytest.raises(DeadlineError, match="pip download"):
        await house.fetch(["x"], python="3.12")
    group = int((tmp_path / "pid").read_text())
    assert [found for found in psutil.process_iter() if group_of(found) == group] == []
    unpacking = Path((tmp_path / "unpacking").read_text().strip())
    assert unpacking.is_relative_to(tmp_path / "state")
    assert Path((tmp_path / "cwd").read_text().strip()).is_relative_to(tmp_path / "state"), "uv reads a uv.toml of where it stands"
    assert not await asyncio.to_thread(unpacking.exists)


def group_of(process: psutil.Process) -> int | None:
    """Of a process that is no corpse."""
    try:
        return None if process.status() == psutil.STATUS_ZOMBIE else os.getpgid(process.pid)
    except (psutil.NoSuchProcess, ProcessLookupError):
        return None


async def test_without_any_pip_the_hint_says_what_to_install(tmp_path: Path, no_module_pip: object) -> None:
    with pytest.raises(UnsupportedError, match="no pip") as caught:
        await Wheelhouse(tmp_path / "state", environ={"PATH": str(tmp_path)}).fetch(["x"], python="3.12")
    assert "install pip or uv" in (caught.value.hint or "")


async def test_two_that_want_the_same_wheels_fetch_them_once(tmp_path: Path, no_module_pip: object) -> None:
    skip = 'case "$*" in *--version*) exit 0;; esac\nwhile [ "$1" != --dest ]; do shift; done\nmkdir -p "$2"'
    script = f'{skip}\necho once >> {tmp_path}/count\n: > "$2/x-1-py3-none-any.whl"'
    environ = fake_pip(tmp_path, script)
    made = await asyncio.gather(*(Wheelhouse(tmp_path / "state", environ=environ).fetch(["x"], python="3.12") for _ in range(6)))
    assert len({wheels.folder for wheels in made}) == 1
    assert (tmp_path / "count").read_text() == "once\n"
