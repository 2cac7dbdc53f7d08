"""A state folder's identity: it goes with the folder that is moved, and a copy gets one of its own."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from agent_env import host
from agent_env.errors import StorageError
from agent_env.stores import identity
from agent_env.stores.identity import Identity, identity_of
from agent_env.stores.installation import InstallationKey, home_of


def copied(original: Path, to: Path) -> Path:
    """As `cp -a` does."""
    subprocess.run(["cp", "-a", original, to], check=True)
    return to


def test_a_folder_keeps_its_id_and_two_folders_never_share_one(tmp_path: Path) -> None:
    first, second = home_of(tmp_path / "one"), home_of(tmp_path / "two")
    assert first != second
    assert home_of(tmp_path / "one") == first
    shutil.rmtree(tmp_path / "one")
    assert home_of(tmp_path / "one") not in {first, second}, "whoever made the folder anew does not own what went with the old one"


def test_a_moved_folder_keeps_its_id_wherever_it_goes(tmp_path: Path) -> None:
    home = home_of(tmp_path / "a")
    for number, (now, then) in enumerate([("a", "b"), ("b", "c"), ("c", "a"), ("a", "d")]):
        (tmp_path / now).rename(tmp_path / then)
        assert home_of(tmp_path / then) == home, number
    assert home_of(tmp_path / "a") != home, "a new folder at the old path is a new installation"
    assert home_of(tmp_path / "d") == home


def test_a_copy_gets_an_id_of_its_own_once_and_it_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    original = identity_of(tmp_path / "a")
    (tmp_path / "a/keeper/places").mkdir(parents=True)
    copy = identity_of(copied(tmp_path / "a", tmp_path / "b"))
    assert copy.home != original.home
    assert [(origin.home, origin.path) for origin in copy.origins] == [(original.home, tmp_path / "a")]
    assert [path.name for path in (tmp_path / "b/keeper").iterdir()] == [f"places-of-{original.home}"]
    assert identity_of(tmp_path / "b") == copy
    assert identity_of(tmp_path / "a") == original
    assert [record.getMessage().count(str(tmp_path / "a")) for record in caplog.records] == [1]


def test_of_a_copy_the_original_may_move_or_go(tmp_path: Path) -> None:
    home = home_of(tmp_path / "a")
    copy = identity_of(copied(tmp_path / "a", tmp_path / "b"))
    (tmp_path / "a").rename(tmp_path / "elsewhere")
    assert home_of(tmp_path / "elsewhere") == home
    assert identity_of(tmp_path / "b") == copy
    assert copy.origins[0].path is None
    last = identity_of(copied(tmp_path / "b", tmp_path / "c"))
    assert [origin.home for origin in last.origins] == [home, copy.home]


def test_a_copy_whose_original_went_before_it_was_used_took_its_place(tmp_path: Path) -> None:
    home = home_of(tmp_path / "a")
    copied(tmp_path / "a", tmp_path / "on-another-disk")
    shutil.rmtree(tmp_path / "a")
    assert home_of(tmp_path / "on-another-disk") == home


def test_what_is_restored_where_it_was_keeps_its_id(tmp_path: Path) -> None:
    home = home_of(tmp_path / "a")
    copied(tmp_path / "a", tmp_path / "snapshot")
    shutil.rmtree(tmp_path / "a")
    assert home_of(copied(tmp_path / "snapshot", tmp_path / "a")) == home
    assert home_of(tmp_path / "snapshot") != home


def test_of_a_folder_set_aside_and_its_copy_put_in_its_place_one_has_the_id(tmp_path: Path) -> None:
    home = home_of(tmp_path / "a")
    (tmp_path / "a").rename(tmp_path / "aside")
    copied(tmp_path / "aside", tmp_path / "a")
    assert [home_of(tmp_path / name) == home for name in ("a", "aside", "a", "aside")] == [True, False, True, False]


def test_a_moved_folder_is_not_taken_for_a_copy_of_the_copy_that_was_put_back(tmp_path: Path) -> None:
    home = home_of(tmp_path / "a")
    (tmp_path / "a").rename(tmp_path / "b")
    assert home_of(tmp_path / "b") == home
    copied(tmp_path / "b", tmp_path / "a")
    assert home_of(tmp_path / "b") == home
    assert home_of(tmp_path / "a") != home


def test_links_lead_to_the_same_folder(tmp_path: Path) -> None:
    home = home_of(tmp_path / "disk/state")
    (tmp_path / "state").symlink_to(tmp_path / "disk/state")
    (tmp_path / "whole").symlink_to(tmp_path / "disk")
    assert {home_of(tmp_path / "state"), home_of(tmp_path / "whole/state")} == {home}


def test_another_path_to_the_same_folder_is_no_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bind mount: what it shows at another path has the same device and inode."""
    home = home_of(tmp_path / "a")
    (tmp_path / "mounted").mkdir()
    status, read, resolved = Path.stat, Path.read_bytes, Path.resolve

    def led(path: Path) -> Path:
        mounted = tmp_path / "mounted"
        return tmp_path / "a" / path.relative_to(mounted) if path.is_relative_to(mounted) else path

    monkeypatch.setattr(Path, "stat", lambda path, **how: status(led(path), **how))
    monkeypatch.setattr(Path, "read_bytes", lambda path: read(led(path)))
    monkeypatch.setattr(identity, "_write", lambda folder, found, write=identity._write: write(led(folder), found))
    assert home_of(tmp_path / "mounted") == home
    assert home_of(tmp_path / "a") == home
    assert resolved(tmp_path / "mounted") != resolved(tmp_path / "a")
    assert home_of(copied(tmp_path / "a", tmp_path / "b")) != home


def test_after_a_boot_that_numbered_the_disks_anew_the_folder_is_the_same(tmp_path: Path) -> None:
    found = identity_of(tmp_path / "a")
    identity._write(tmp_path / "a", replace(found, device=found.device + 1))
    assert identity_of(tmp_path / "a") == found


@pytest.mark.parametrize("moved", [False, True], ids=["the very folder, over the network", "a copy of it at the same path"])
def test_on_another_machine_nothing_is_this_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moved: bool) -> None:
    here = identity_of(tmp_path / "a")
    if moved:
        copied(tmp_path / "a", tmp_path / "far")
        (tmp_path / "a").rename(tmp_path / "b")
        (tmp_path / "far").rename(tmp_path / "a")
    monkeypatch.setattr(host, "machine_id", lambda: "another")
    there = identity_of(tmp_path / "a")
    assert there.home != here.home
    assert bool(there.origins) is moved
    assert identity_of(tmp_path / "a") == there
    monkeypatch.undo()
    assert home_of(tmp_path / ("b" if moved else "a")) == here.home


def test_machines_without_an_id_are_told_apart_by_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "machine_id", lambda: "")
    home = home_of(tmp_path / "volume")
    copied(tmp_path / "volume", tmp_path / "image")
    monkeypatch.setattr(identity.socket, "gethostname", lambda: "the-next-container")
    assert home_of(tmp_path / "volume") == home, "a volume that the next container mounts"
    assert home_of(tmp_path / "image") != home


def of_old(state: Path) -> None:
    InstallationKey(state).derive("run", "name")
    (state / "installation.json").unlink()


def test_a_folder_from_before_there_were_identities_keeps_its_label(tmp_path: Path) -> None:
    of_old(tmp_path / "a")
    label = identity._digest(identity._place(tmp_path / "a"))
    assert home_of(tmp_path / "a") == label
    (tmp_path / "a").rename(tmp_path / "b")
    assert (home_of(tmp_path / "b"), identity_of(tmp_path / "b").old) == (label, True)
    assert home_of(tmp_path / "a") != label


def test_a_folder_that_has_a_key_first_is_no_old_one(tmp_path: Path) -> None:
    InstallationKey(tmp_path / "a").derive("run", "name")
    assert not identity_of(tmp_path / "a").old


CHILD = """
import pathlib, sys
from agent_env.stores.installation import home_of
sys.stdin.read()
print(home_of(pathlib.Path(sys.argv[1])))
"""


@pytest.mark.parametrize("of", ["a fresh folder", "a fresh copy"])
def test_whoever_begins_at_once_finds_the_same_id_and_one_says_so(tmp_path: Path, of: str) -> None:
    state, homes = tmp_path / "state", set[str]()
    if of == "a fresh copy":
        homes.add(home_of(tmp_path / "a"))
        copied(tmp_path / "a", state)
    pipe = subprocess.PIPE
    started = [subprocess.Popen([sys.executable, "-c", CHILD, state], stdin=pipe, stdout=pipe, stderr=pipe, text=True) for _ in range(4)]
    for process in started:
        assert process.stdin is not None
        process.stdin.close()
    said = [(process.stdout.read(), process.stderr.read(), process.wait()) for process in started if process.stdout and process.stderr]
    assert len({out for out, _, _ in said}) == 1, said
    assert {out.strip() for out, _, _ in said}.isdisjoint(homes)
    told = [err for _, err, _ in said if err]
    assert [text.count("\n") for text in told] == ([1] if homes else []), said


def test_where_nothing_can_be_written_the_same_is_found_out_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = identity_of(tmp_path / "a")
    copy = copied(tmp_path / "a", tmp_path / "b")

    def refused(folder: Path) -> None:
        raise PermissionError(f"{folder} can't be written")

    monkeypatch.setattr(identity, "_locked", refused)
    assert identity_of(tmp_path / "a") == found
    there = identity_of(copy)
    assert (identity_of(copy), there.home != found.home) == (there, True)
    assert home_of(Path("/dev/null/agent-env")) == home_of(Path("/dev/null/agent-env"))


@pytest.mark.parametrize("damage", [lambda text: text[: len(text) // 2], lambda _: "[]", lambda _: "{}"], ids=["cut", "a list", "empty"])
def test_a_damaged_identity_is_an_error_that_names_the_file(tmp_path: Path, damage: Callable[[str], str]) -> None:
    identity_of(tmp_path / "a")
    file = tmp_path / "a/installation.json"
    file.write_text(damage(file.read_text()))
    with pytest.raises(StorageError, match="damaged") as refused:
        identity_of(tmp_path / "a")
    assert str(file) in str(refused.value)


def test_an_identity_says_no_more_of_the_machine_than_a_digest(tmp_path: Path) -> None:
    found = identity_of(tmp_path / "a")
    assert isinstance(found, Identity)
    assert not host.machine_id() or host.machine_id() not in (tmp_path / "a/installation.json").read_text()
