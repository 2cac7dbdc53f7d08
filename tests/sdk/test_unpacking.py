"""Archives of conversations: unpacked alike by every Python that we promise to run on."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest
from agent_env_sdk.agent.unpacking import unpack

PYTHONS = ("this", "before 3.11.4")


def archived(*members: tarfile.TarInfo) -> tarfile.TarFile:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for member in members:
            archive.addfile(member, io.BytesIO(b"x" * member.size))
    buffer.seek(0)
    return tarfile.open(fileobj=buffer)


def entry(name: str, *, size: int = 1, mode: int = 0o644, link: str | None = None) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.size, made.mode = (0 if link else size), mode
    if link:
        made.type, made.linkname = tarfile.SYMTYPE, link
    return made


@pytest.fixture(params=PYTHONS)
def python(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param != "this":
        monkeypatch.delattr(tarfile, "tar_filter", raising=False)


@pytest.mark.usefixtures("python")
def test_files_links_and_rights_come_back_without_what_others_could_use(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    with archived(entry("/a/b.txt", mode=0o4777), entry("link", link="a/b.txt")) as archive:
        unpack(archive, folder)
    assert (folder / "a/b.txt").stat().st_mode & 0o7777 == 0o755
    assert (folder / "link").read_text() == (folder / "a/b.txt").read_text() == "x"


@pytest.mark.usefixtures("python")
@pytest.mark.parametrize("members", [[entry("../out")], [entry("way", link=".."), entry("way/out")]], ids=["above", "by a link"])
def test_nothing_comes_to_lie_outside(tmp_path: Path, members: list[tarfile.TarInfo]) -> None:
    folder = tmp_path / "in"
    with archived(*members) as archive, pytest.raises(tarfile.TarError):
        unpack(archive, folder)
    assert not (tmp_path / "out").exists()
