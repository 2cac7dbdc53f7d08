"""What builds get beside their own files: wheels that a Dockerfile asks for, and base images in place of others."""

from __future__ import annotations

import asyncio
import os
import shutil
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import agent_env_sdk
import pytest

from agent_env.errors import ProblemsError, StorageError, TransferError, UserError
from agent_env.images import BuildContext, BuildRequest, ImageReference
from agent_env.images.own_wheels import own_wheel
from agent_env.images.provisions import Bases, asked_for, provisioned
from agent_env.images.wheelhouse import Wheels


class House:
    """In place of the index: what was asked for, and two files for it."""

    def __init__(self, folder: Path) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.folder = folder
        folder.mkdir()
        (folder / "a-1-py3-none-any.whl").write_bytes(b"wheel")
        (folder / "requirements.txt").write_text("a==1\n")

    async def fetch(self, requirements: list[str], *, python: str, platform: str, libc: str) -> Wheels:
        self.asked.append((requirements, python, platform, libc))
        return Wheels(self.folder, ("a-1-py3-none-any.whl",))


def request(folder: Path, dockerfile: str, **files: str) -> BuildRequest:
    folder.mkdir(parents=True)
    (folder / "Dockerfile").write_text(dockerfile)
    for name, text in files.items():
        path = folder / name.replace("_", ".")
        path.write_text(text)
    return BuildRequest(BuildContext.of(folder), ImageReference.parse("t/t:1"))


def given(made: BuildRequest, root: Path, house: House, said: list[str]) -> BuildRequest:
    return asyncio.run(provisioned(made, root / "state", house, said.append))  # type: ignore[arg-type]


def test_a_dockerfile_gets_the_wheels_that_it_asks_for_and_our_own_from_here(tmp_path: Path) -> None:
    house, text = House(tmp_path / "wheels"), "# agent-env: wheels=requirements.txt\n# for a server\nFROM python:3.12-slim\nCOPY . .\n"
    made = request(
        tmp_path / "c",
        text,
        requirements_txt="agent-env-sdk[environment]\n\n# more\nhttpx>=0.27 # of the web\na==1 \\\n    --hash=sha256:0\n",
    )
    found = given(made, tmp_path, house, [])
    assert [entry.name for entry in found.context.entries] == [
        "Dockerfile",
        "requirements.txt",
        "wheels/a-1-py3-none-any.whl",
        "wheels/requirements.txt",
    ]
    ((requirements, python, _, libc),) = house.asked
    assert (python, libc, requirements[1:]) == ("3.12", "glibc", ["httpx>=0.27", "a==1 --hash=sha256:0"])
    own = Path(requirements[0].removesuffix("[environment]"))
    assert (own.suffix, requirements[0].endswith(".whl[environment]")) == (".whl", True)
    with zipfile.ZipFile(own) as wheel:
        assert wheel.testzip() is None
        assert {"agent_env_sdk/__init__.py", "agent_env_sdk/py.typed"} <= set(wheel.namelist())
    assert own_wheel("agent-env-sdk", tmp_path / "elsewhere").read_bytes() == own.read_bytes()


def test_builds_that_pack_our_own_wheel_at_the_same_moment_all_have_it_whole(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: own_wheel("agent-env-sdk", tmp_path).read_bytes(), range(8)))
    assert len(set(made)) == 1
    assert sorted(path.suffix for path in tmp_path.rglob("*") if path.is_file()) in ([".json", ".whl"], [".whl"])  # and nothing half done


def test_our_own_wheel_is_known_without_reading_its_sources_and_anew_once_one_of_them_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    into, copy = tmp_path / "own", tmp_path / "agent_env_sdk"
    first = own_wheel("agent-env-sdk", into)
    (memory,) = into.glob("*.json")
    other = into / "other.whl"
    other.write_bytes(b"")
    memory.write_text(memory.read_text().replace(first.relative_to(into).as_posix(), other.name))
    assert own_wheel("agent-env-sdk", into) == other  # what was remembered is believed
    other.unlink()
    assert own_wheel("agent-env-sdk", into) == first
    shutil.copytree(Path(agent_env_sdk.__file__).parent, copy)
    assert agent_env_sdk.__spec__ is not None
    monkeypatch.setattr(agent_env_sdk.__spec__, "submodule_search_locations", [str(copy)])
    source = copy / "sockets.py"
    before, content = source.stat(), source.read_bytes()
    assert own_wheel("agent-env-sdk", into) == first
    source.write_bytes(content[:-1] + b"#")
    os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns))
    changed = own_wheel("agent-env-sdk", into)
    assert changed != first
    with zipfile.ZipFile(changed) as wheel:
        assert wheel.read("agent_env_sdk/sockets.py").endswith(b"#")
    (copy / "more.py").write_text("")
    assert own_wheel("agent-env-sdk", into) not in {first, changed}


async def test_an_image_that_is_there_is_found_before_its_wheels_are_prepared(here, tmp_path: Path) -> None:
    wheel = tmp_path / "our_tool-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("our_tool-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: our-tool\nVersion: 1.0\n")
        archive.writestr("our_tool-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("our_tool-1.0.dist-info/RECORD", "")
    async with here() as lab:
        text = "# agent-env: wheels=requirements.txt python=3.12\nFROM BASE\nCOPY wheels /wheels\n"
        made = lab.request(text, {"requirements.txt": f"{wheel}\n"})
        images = lab.images()
        first = await images.build(made)
        house = lab.root / "state/images/wheelhouses"
        assert house.exists()
        shutil.rmtree(house)
        wheel.unlink()
        again = await images.build(replace(made, name=ImageReference.parse(f"{made.name.path}:again")))
        assert (again.id, house.exists()) == (first.id, False)
        assert {name.rpartition(":")[2] for name in again.names} == {"1", "again"}
        with pytest.raises(TransferError, match=f"the wheel {wheel} is asked for and can't be read"):
            await images.build(lab.request(text, {"requirements.txt": f"{wheel}\n", "server.py": "changed"}))


@pytest.mark.parametrize(
    ("text", "files"),
    [
        ("FROM python:3.12-slim\n# agent-env: wheels=requirements.txt\n", {}),
        ("FROM python:3.12-slim\n", {}),
    ],
)
def test_who_does_not_ask_gets_nothing(tmp_path: Path, text: str, files: dict[str, str]) -> None:
    house = House(tmp_path / "wheels")
    made = request(tmp_path / "c", text, requirements_txt="a\n", **files)
    assert given(made, tmp_path, house, []) is made
    assert house.asked == []


def test_a_folder_of_wheels_that_is_there_is_left_as_it_is(tmp_path: Path) -> None:
    made = request(tmp_path / "c", "# agent-env: wheels=requirements.txt\nFROM python:3.12\n", requirements_txt="a\n")
    (tmp_path / "c/wheels").mkdir()
    (tmp_path / "c/wheels/own.whl").write_bytes(b"")
    again = BuildRequest(BuildContext.of(tmp_path / "c"), made.name)
    assert given(again, tmp_path, House(tmp_path / "house"), []) is again


@pytest.mark.parametrize(
    ("asks", "problem"),
    [
        ("wheels=absent.txt", "'absent.txt', which is no file of its context"),
        ("wheels=requirements.txt cheese=brie", "'cheese', which nobody knows"),
        ("wheels=requirements.txt", "does not say for which Python"),
    ],
)
def test_what_cannot_be_had_is_told(tmp_path: Path, asks: str, problem: str) -> None:
    made = request(tmp_path / "c", f"# agent-env: {asks}\nFROM debian\n", requirements_txt="a\n")
    with pytest.raises(ProblemsError, match=problem):
        asked_for(made.context.dockerfile_text(), made.context)


def test_alpine_gets_wheels_of_musl_and_the_python_can_be_said(tmp_path: Path) -> None:
    made = request(tmp_path / "c", "# agent-env: wheels=requirements.txt python=3.13\nFROM alpine:3.20\n", requirements_txt="a\n")
    asked = asked_for(made.context.dockerfile_text(), made.context)
    assert asked is not None
    assert (asked.python, asked.libc) == ("3.13", "musl")


def test_a_base_image_is_used_in_place_of_another_and_that_is_said(tmp_path: Path) -> None:
    said: list[str] = []
    bases = Bases(tmp_path / "state")
    bases.write("registry.example/python:3.11-slim", "python:3.12-slim")
    rest = " AS one\nFROM debian\nCOPY --from=one /a /a\n"
    text = f"FROM --platform=linux/amd64 registry.example/python:3.11-slim@sha256:{'0' * 64}{rest}"
    made = request(tmp_path / "c", text)
    found = given(made, tmp_path, House(tmp_path / "wheels"), said)
    assert found.context.dockerfile_text() == f"FROM --platform=linux/amd64 python:3.12-slim{rest}"
    assert len(said) == 1
    assert made.context.dockerfile_text() == text
    bases.write("registry.example/python:3.11-slim", None)
    assert (bases.read(), given(made, tmp_path, House(tmp_path / "again"), said) is made) == ({}, True)
    with pytest.raises(UserError):
        bases.write("NOT AN IMAGE", "python")
    (tmp_path / "state/images/bases.json").write_text("[")
    with pytest.raises(StorageError, match="can't be read"):
        bases.read()
