"""Objects: named by content, whole or absent, verified, stored once, collected late."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent_env.errors import NotFoundError, StorageError, UnsupportedError
from agent_env.stores import Database, Documents, ObjectRef, Objects, live_objects

from .test_database import actor, small_disk

ROOT = Path(__file__).parents[2]


@pytest.fixture
def store(tmp_path: Path) -> Objects:
    return Objects(tmp_path / "objects")


def stored_files(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_file() and len(path.name) == 62]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=50)
@given(data=st.binary(max_size=3000))
def test_what_was_stored_is_read_under_the_digest_of_its_content(store: Objects, data: bytes) -> None:
    ref = store.put(data, media_type="text/plain")
    assert ref == ObjectRef(hashlib.sha256(data).hexdigest(), len(data), "text/plain")
    assert ref.url == f"sha256:{ref.sha256}"
    assert store.read(ref) == store.read(ref.url) == store.path(ref).read_bytes() == data
    assert store.exists(ref.url)
    assert store.size(ref) == len(data)


def test_the_same_content_is_stored_once_as_bytes_and_as_a_file(store: Objects, tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(b"same")
    one, two, three = store.put(b"same"), store.put(b"same"), store.put_file(tmp_path / "source")
    assert one.sha256 == two.sha256 == three.sha256
    assert len(stored_files(tmp_path / "objects")) == 1


def test_files_are_private_and_lie_under_the_first_two_digits(store: Objects, tmp_path: Path) -> None:
    ref = store.put(b"x")
    path = store.path(ref)
    assert path == tmp_path / "objects" / ref.sha256[:2] / ref.sha256[2:]
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == (tmp_path / "objects").stat().st_mode & 0o777 == 0o700


def test_a_large_file_is_stored_in_constant_memory(tmp_path: Path) -> None:
    source = tmp_path / "large"
    with source.open("wb") as stream:
        stream.truncate(80_000_000)
    script = (
        "import sys; from pathlib import Path; from agent_env.stores import Objects; from tests.memory import forget_peak, peak_bytes\n"
        "store = Objects(Path(sys.argv[1])); store.put(b'warm'); before = forget_peak()\n"
        "ref = store.put_file(Path(sys.argv[2])); store.path(ref)\n"
        "print(peak_bytes() - before, ref.size)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, tmp_path / "objects", source], capture_output=True, text=True, check=True, timeout=60, cwd=ROOT
    )
    grown, size = map(int, done.stdout.split())
    assert size == 80_000_000
    assert grown < 8 << 20


def test_rs03_a_damaged_object_is_named_set_aside_and_can_be_stored_again(store: Objects, tmp_path: Path) -> None:
    ref, other = store.put(b"precious data"), store.put(b"other")
    for damage in (b"precious dat", b"precious DATA", b""):
        store.path(ref).write_bytes(damage)
        with pytest.raises(StorageError, match=f"{ref.sha256} is damaged"):
            store.read(ref)
        assert (tmp_path / "objects" / ".damaged" / ref.sha256).read_bytes() == damage
        with pytest.raises(NotFoundError, match=ref.sha256[2:]):
            store.read(ref)
        store.put(b"precious data")
        assert store.read(ref) == b"precious data"
    assert store.read(other) == b"other"


def test_a_path_is_verified_again_after_its_file_changed(store: Objects) -> None:
    ref = store.put(b"abc")
    path = store.path(ref)
    path.write_bytes(b"abd")
    with pytest.raises(StorageError, match="damaged"):
        store.path(ref)
    with pytest.raises(NotFoundError):
        store.open(ref)


def test_files_of_older_stores_are_read_by_their_url_and_no_other_file_is(store: Objects, tmp_path: Path) -> None:
    theirs = tmp_path / "object_store/a file with ümlaut & 100%.txt"
    theirs.parent.mkdir()
    (tmp_path / "secrets.json").write_text("private")
    (theirs.parent / "link").symlink_to(tmp_path / "secrets.json")
    outside = [(tmp_path / "secrets.json").as_uri(), (theirs.parent / "link").as_uri(), f"{theirs.parent.as_uri()}/%2e%2e/secrets.json"]
    for url in (*outside, "file:///etc/passwd", "file://localhost/etc/passwd", "file:///etc/pass%00wd"):
        for deed in (store.read, store.path, store.open, store.exists, store.size):
            with pytest.raises(UnsupportedError, match="outside of"):
                deed(url)
    theirs.write_bytes(b"theirs")
    assert store.read(theirs.as_uri()) == b"theirs"
    assert store.path(theirs.as_uri()) == theirs
    with store.open(theirs.as_uri()) as stream:
        assert stream.read() == b"theirs"
    theirs.unlink()
    with pytest.raises(NotFoundError):
        store.read(theirs.as_uri())
    with pytest.raises(UnsupportedError, match="s3://bucket/x"):
        store.read("s3://bucket/x")
    with pytest.raises(UnsupportedError):
        store.read("sha256:../../etc/passwd")


def test_d05_a_full_disk_is_an_error_leaves_no_half_file_and_works_again(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 2):
        store = Objects(tmp_path / "disk" / "objects")
        kept = store.put(b"kept")
        with pytest.raises(StorageError, match="No space left"):
            store.put(b"x" * 4_000_000)
        (tmp_path / "large").write_bytes(b"y" * 4_000_000)
        with pytest.raises(StorageError, match="No space left"):
            store.put_file(tmp_path / "large")
        assert store.read(kept) == b"kept"
        assert list((tmp_path / "disk" / "objects" / ".aside").iterdir()) == []
        assert store.read(store.put(b"small again")) == b"small again"


@pytest.mark.parametrize("seed", range(3))
def test_d01_a_kill_while_storing_leaves_whole_objects_only(tmp_path: Path, seed: int) -> None:
    source = random.Random(seed)
    writer = actor("put_objects", tmp_path / "objects", "content")
    assert writer.stdout is not None
    said = [writer.stdout.readline().strip() for _ in range(source.randrange(1, 40))]
    writer.kill()
    said += [line for line in writer.stdout.read().split("\n") if len(line) == 64]
    writer.wait()
    store = Objects(tmp_path / "objects")
    for path in stored_files(tmp_path / "objects"):
        assert hashlib.sha256(path.read_bytes()).hexdigest() == path.parent.name + path.name, f"seed {seed}"
    assert all(store.exists(f"sha256:{sha256}") for sha256 in said)
    store.collect((), grace_seconds=0)
    assert [path for path in (tmp_path / "objects").rglob("*") if path.is_file() and path.name != ".lock"] == []


def test_a_batch_is_there_as_a_whole_or_not_at_all(store: Objects, tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(b"from a file")
    with store.batch() as batch:
        refs = [batch.put(b"%d" % number) for number in range(20)] + [batch.put_file(tmp_path / "source"), batch.put(b"7")]
        assert not store.exists(refs[0])
    assert [store.read(ref) for ref in refs] == [*(b"%d" % number for number in range(20)), b"from a file", b"7"]

    def cut() -> None:
        with store.batch() as batch:
            batch.put(b"never")
            batch.put_file(tmp_path / "absent")

    with pytest.raises(NotFoundError, match="absent"):
        cut()
    assert not store.exists(hashlib.sha256(b"never").hexdigest())
    assert list((tmp_path / "objects" / ".aside").iterdir()) == []


def test_an_object_that_was_stored_anew_is_not_set_aside_for_the_damage_before_it(store: Objects) -> None:
    ref = store.put(b"good")
    store._set_aside(ref.sha256)
    assert store.read(ref) == b"good"


def test_a_collection_removes_what_nothing_refers_to_after_the_grace_period(store: Objects) -> None:
    live, dead, young = store.put(b"live"), store.put(b"dead"), store.put(b"young")
    for ref in (live, dead):
        os.utime(store.path(ref), (1, 1))
    assert store.collect([live.url], grace_seconds=3600, dry_run=True).objects == 1
    assert store.exists(dead)
    freed = store.collect([live.url], grace_seconds=3600)
    assert (freed.objects, freed.size_bytes) == (1, 4)
    assert [store.exists(ref) for ref in (live, dead, young)] == [True, False, True]


def test_storing_again_what_is_about_to_be_collected_keeps_it(store: Objects) -> None:
    ref = store.put(b"old")
    os.utime(store.path(ref), (1, 1))
    store.put(b"old")
    assert store.collect((), grace_seconds=3600).objects == 0
    assert store.read(ref) == b"old"


def test_a_put_is_never_lost_to_a_collection_that_runs_meanwhile(store: Objects) -> None:
    over = threading.Event()

    def collecting() -> None:
        while not over.is_set():
            store.collect((), grace_seconds=3600)

    collector = threading.Thread(target=collecting)
    collector.start()
    try:
        for number in range(200):
            ref = store.put(b"again %d" % (number % 5))
            os.utime(store.path(ref), (1, 1))
            again = store.put(b"again %d" % (number % 5))
            assert store.read(again) == b"again %d" % (number % 5)
    finally:
        over.set()
        collector.join()


def test_media_types_are_kept_and_forgotten_with_their_objects(db: Database, objects: Objects) -> None:
    ref = objects.put(b"{}", media_type="application/json")
    db.write(lambda tx: None)
    assert objects.media_type(ref.url) == "application/json"
    objects.collect((), grace_seconds=0)
    assert objects.media_type(ref.url) is None


def test_what_documents_refer_to_is_live(db: Database, objects: Objects) -> None:
    kept, gone = objects.put(b"kept"), objects.put(b"gone")
    Documents(db).put("artifacts", "a", "file", {"deep": [{"object_url": kept.url}]})
    for number in range(1100):
        Documents(db).put("artifacts", f"many{number:04}", "file", {"url": f"sha256:{number:064x}"})
    live = live_objects(db, objects)
    assert kept.sha256 in live
    assert gone.sha256 not in live
    assert {f"{number:064x}" for number in range(1100)} < live


def test_the_limit_of_a_files_size_is_an_error_too(tmp_path: Path) -> None:
    script = (
        "import resource, signal, sys; from pathlib import Path\n"
        "from agent_env.stores import Objects; from agent_env.errors import StorageError\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "store = Objects(Path(sys.argv[1])); small = store.put(b'small')\n"
        "try: store.put(b'x' * 5000)\n"
        "except StorageError as error: print(error.code, store.read(small).decode())"
    )
    done = subprocess.run([sys.executable, "-c", script, tmp_path / "objects"], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "storage small\n"
