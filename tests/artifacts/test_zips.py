"""Hostile archives: each kind is refused by a message that names the member, before anything is unpacked."""

from __future__ import annotations

import io
import stat
import warnings
import zipfile
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_env.artifacts.zips import unzip
from agent_env.defaults import DEFAULT_LIMITS, KIB
from agent_env.errors import ProblemsError
from tests.documents.fuzzing import problems_of
from tests.memory import forget_peak, peak_bytes

Member = tuple[str | zipfile.ZipInfo, bytes]


def archive(*members: Member) -> bytes:
    buffer = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        warnings.simplefilter("ignore")  # of names that are there twice
        for name, content in members:
            file.writestr(name, content)
    return buffer.getvalue()


def special(name: str, kind: int) -> zipfile.ZipInfo:
    member = zipfile.ZipInfo(name)
    member.external_attr = (kind | 0o777) << 16
    return member


def patched(data: bytes, old: bytes, new: bytes) -> bytes:
    """The archive with bytes of equal length replaced, in the member's own head and in the list of members."""
    assert len(old) == len(new)
    assert data.count(old) >= 2
    return data.replace(old, new)


def encrypted(data: bytes) -> bytes:
    changed = bytearray(data)
    changed[6] |= 1
    changed[changed.index(b"PK\x01\x02") + 8] |= 1
    return bytes(changed)


def altered(data: bytes) -> bytes:
    return data[:45] + bytes([data[45] ^ 0xFF]) + data[46:]


def understated(data: bytes) -> bytes:
    """The member says that it holds one byte."""
    changed = bytearray(data)
    changed[22:26] = (1).to_bytes(4, "little")
    at = changed.index(b"PK\x01\x02") + 24
    changed[at : at + 4] = (1).to_bytes(4, "little")
    return bytes(changed)


GOOD: Member = ("root/good", b"good")
HOSTILE = {
    "a path that climbs": (archive(GOOD, ("root/a/../../evil", b"x")), "root/a/../../evil", "leads outside"),
    "a path that climbs, where nothing is unpacked from": (archive(GOOD, ("../evil", b"x")), "../evil", "leads outside"),
    "a folder that climbs": (archive(GOOD, ("root/../../evil/", b"")), "root/../../evil/", "leads outside"),
    "an absolute path": (archive(GOOD, ("/etc/passwd", b"x")), "/etc/passwd", "absolute"),
    "a link that leads outside": (archive(GOOD, (special("root/l", stat.S_IFLNK), b"/etc")), "root/l", "link or special"),
    "a link that stays inside": (archive(GOOD, (special("root/l", stat.S_IFLNK), b"good")), "root/l", "link or special"),
    "a device": (archive(GOOD, (special("root/d", stat.S_IFCHR), b"")), "root/d", "link or special"),
    "a pipe": (archive(GOOD, (special("root/p", stat.S_IFIFO), b"")), "root/p", "link or special"),
    "a name that is there twice": (archive(GOOD, ("root/twice", b"1"), ("root/twice", b"2")), "root/twice", "there twice"),
    "a name that is there twice, spelled differently": (archive(GOOD, ("root/t", b"1"), ("root/.//t", b"2")), "root/.//t", "there twice"),
    "an encrypted member": (encrypted(archive(("root/secret", b"x"))), "root/secret", "encrypted"),
    "a name that is not the UTF-8 that it says": (
        patched(archive(("root/é", b"x")), "é".encode(), b"\xff\xfe"), r"root/\xff\xfe", "UTF-8"
    ),
    "a part of a name that is too long": (archive(GOOD, ("root/" + "x" * 256, b"")), "root/" + "x" * 115 + "…", "too long"),
    "folders nested too deep": (archive(GOOD, ("root/" + "d/" * 2500 + "f", b"")), "root/" + "d/" * 57 + "d…", "too long"),
    "bytes that were altered": (altered(archive(("root/a", b"content " * 50))), "root/a", "damaged"),
    "more than it says": (understated(archive(("root/a", b"content " * 50))), "root/a", "damaged"),
}  # fmt: skip


@pytest.mark.parametrize(("data", "member", "said"), HOSTILE.values(), ids=HOSTILE)
def test_each_kind_of_hostile_member_is_refused_by_name(data: bytes, member: str, said: str) -> None:
    (problem,) = problems_of(lambda: list(unzip(data, source="seed.zip", only=("root/",))))
    assert problem.file == "seed.zip"
    assert problem.path == member
    assert said in problem.message


def test_what_is_no_archive_is_told_as_one() -> None:
    whole = archive(GOOD)
    for data in (b"PK", whole[:20], whole[:-10], b"PK\x05\x06" + bytes(10)):
        with pytest.raises(ProblemsError, match="damaged"):
            list(unzip(data, source="seed.zip"))
    assert list(unzip(archive(), source="empty.zip")) == []


def test_a_bomb_by_size_is_refused_by_what_it_says_and_costs_no_memory() -> None:
    bomb = archive(("root/a", bytes(3_000_000)), ("root/b", bytes(3_000_000)))
    assert len(bomb) < 20_000
    limits = replace(DEFAULT_LIMITS, payload_bytes=4_000_000)
    with pytest.raises(ProblemsError, match=r"root/b: makes the payload larger than it may be \(4000000 bytes, limit payload_bytes\)"):
        list(unzip(bomb, source="seed.zip", limits=limits))


def test_a_bomb_by_ratio_is_refused_and_a_small_file_of_zeros_is_none() -> None:
    bomb = archive(("root/a", bytes(2_000_000)))
    limits = replace(DEFAULT_LIMITS, payload_unquestioned_bytes=1_000_000)
    with pytest.raises(ProblemsError, match=r"root/a: unpacks to 2000000 bytes of an archive of \d+: more than 200 times as much"):
        list(unzip(bomb, source="seed.zip", limits=limits))
    assert list(unzip(bomb, source="seed.zip")) == [("root/a", bytes(2_000_000))]


def test_a_bomb_that_says_it_is_small_is_never_unpacked() -> None:
    bomb = understated(archive(("root/a", bytes(200_000_000))))
    before = forget_peak()
    with pytest.raises(ProblemsError, match="root/a: is damaged"):
        list(unzip(bomb, source="seed.zip"))
    assert peak_bytes() - before < 20_000_000


def test_a_bomb_by_the_number_of_its_members_is_refused_before_their_list_is_read() -> None:
    bomb = archive(*((f"root/{i}", b"") for i in range(3000)))
    limits = replace(DEFAULT_LIMITS, payload_entries=2999)
    with pytest.raises(ProblemsError, match="has more than 2999 members"):
        list(unzip(bomb, source="seed.zip", limits=limits))
    assert len(list(unzip(bomb, source="seed.zip", limits=replace(limits, payload_entries=3000)))) == 3000


def test_names_of_old_archivers_are_read_as_they_always_were() -> None:
    member = zipfile.ZipInfo("root/plain")
    data = patched(archive((member, b"x")), b"root/plain", b"root/pl\x84in")  # ä of code page 437
    assert list(unzip(data, source="seed.zip")) == [("root/pläin", b"x")]


@given(data=st.binary(max_size=4 * KIB), at=st.integers(0, 300), whole=st.booleans())
def test_altered_archives_end_in_plain_inner_names_or_in_problems(data: bytes, at: int, whole: bool) -> None:
    good = archive(("root/a/b", b"content " * 20), ("data.json", b"{}"), ("root/c", b""))
    tried = data if whole else good[:at] + data[:3] + good[at + 3 :]
    try:
        members = list(unzip(tried, source="seed.zip"))
    except ProblemsError:
        return
    for name, _ in members:
        assert name
        assert not name.startswith("/")
        assert ".." not in name.split("/")
