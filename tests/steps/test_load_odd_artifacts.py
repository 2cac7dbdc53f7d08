"""`load_artifact` of artifacts that nobody meant well, and of very many files."""

from __future__ import annotations

import zipfile
from pathlib import PurePosixPath

import pytest

from agent_env.documents.stored import Ref
from agent_env.errors import ProblemsError, TransferError
from tests.artifacts.test_zips import GOOD, HOSTILE, archive
from tests.steps.bench import BenchRun
from tests.steps.conftest import Bench

LENT = " -o ".join(f"-path /{name}" for name in ("usr", "lib", "lib32", "lib64", "libx32", "bin", "sbin", "opt", "proc"))
NEW = f"find / -xdev '(' {LENT} ')' -prune -o -newer /data -print 2>/dev/null | sort"
"""What came after `/data`. The machine's own `/usr`, also as `/lib` and `/bin`, is lent read-only, and large."""


def seed(run: BenchRun, data: bytes, id: str = "seed", server: str = "mail") -> None:
    run.artifacts.put_environment(id, server, data, filename="seed.zip")


@pytest.mark.parametrize(("data", "member", "said"), HOSTILE.values(), ids=HOSTILE)
def test_b5_a_hostile_archive_is_refused_by_its_member_and_nothing_of_it_or_beside_it_is_written(
    bench: Bench, data: bytes, member: str, said: str
) -> None:
    async def body(run: BenchRun) -> None:
        seed(run, data)
        run.artifacts.put_universe("beside", {"kept.txt": b"x"})
        before = await run.sh(NEW)
        with pytest.raises(ProblemsError) as raised:
            await run.do(
                {"id": "l", "type": "load_artifact", "artifacts": [{"id": "beside"}, {"id": "seed"}], "destination_path": "/data/in"}
            )
        assert member in str(raised.value)
        assert said in str(raised.value)
        assert await run.sh(NEW) == before
        assert await run.sh("ls /data") == ""
        assert "loaded_environment_artifacts" not in run.metadata
        assert not list(run.scratch().iterdir())

    bench(body)


def test_members_that_differ_in_case_alone_both_arrive(bench: Bench) -> None:
    async def body(run: BenchRun) -> None:
        seed(run, archive(("root/A", b"1"), ("root/a", b"2"), GOOD))
        await run.do({"id": "l", "type": "load_artifact", "artifact_id": "seed", "destination_path": "/data/in"})
        assert await run.sh("cd /data/in && cat A a good") == "12good"

    bench(body)


def test_an_archive_as_a_plain_file_is_not_looked_into(bench: Bench) -> None:
    """A file artifact is bytes, whatever they are."""

    async def body(run: BenchRun) -> None:
        data = archive(("../evil", b"x"), (zipfile.ZipInfo("/abs"), b"y"))
        run.artifacts.put_file("zip", data, filename="evil.zip")
        await run.do({"id": "l", "type": "load_artifact", "artifact_id": "zip", "destination_path": "/data/in"})
        assert await (await run.box()).read(PurePosixPath("/data/in/evil.zip")) == data

    bench(body)


def test_a_destination_so_long_that_no_file_fits_below_it_is_an_error_that_names_the_file(bench: Bench) -> None:
    async def body(run: BenchRun) -> None:
        run.artifacts.put_universe("u", {"d/" * 100 + "f": b"x"})
        folder = "/data/" + "long/" * 830
        with pytest.raises(TransferError, match="too long"):
            await run.do({"id": "l", "type": "load_artifact", "artifact_id": "u", "destination_path": folder})

    bench(body)


@pytest.mark.parametrize("count", [10, 3_000])
def test_files_of_any_number_take_the_same_round_trips(bench: Bench, count: int) -> None:
    async def body(run: BenchRun) -> None:
        run.artifacts.put_universe("many", {f"{i % 100}/{i}": str(i).encode() for i in range(count)})
        (sandbox,) = run.sandboxes.values()
        connection = sandbox._place._connection  # type: ignore[attr-defined]
        before = connection._next
        await run.do({"id": "l", "type": "load_artifact", "artifact_id": "many", "destination_path": "/data/in"})
        assert connection._next - before == 2  # a look for links that lead out, and all the files
        assert await run.sh("find /data/in -type f | wc -l") == f"{count}\n"
        assert await run.sh("cat /data/in/7/7") == "7"

    bench(body)


def test_an_environment_group_with_one_hostile_member_writes_nothing(bench: Bench) -> None:
    async def body(run: BenchRun) -> None:
        seed(run, archive(GOOD), "one")
        seed(run, HOSTILE["a path that climbs"][0], "two")
        for entries in ([{"id": "one"}, {"id": "two"}], [{"id": "two"}, {"id": "one"}]):
            with pytest.raises(ProblemsError, match="leads outside"):
                await run.do({"id": "l", "type": "load_artifact", "artifacts": entries, "destination_path": "/data/in"})
        assert await run.sh("ls /data") == ""

    bench(body)


def test_two_parts_of_a_group_with_a_file_of_the_same_path_are_a_problem_that_names_it(bench: Bench) -> None:
    async def body(run: BenchRun) -> None:
        seed(run, archive(GOOD), "one")
        seed(run, archive(GOOD, ("root/b", b"")), "two")
        seed(run, archive(GOOD), "three", server="files")
        load = {"id": "l", "type": "load_artifact", "artifact_id": "group", "destination_path": "/data/in"}
        run.artifacts.put_environment_universe("group", [Ref(id="one", version=1), Ref(id="two", version=1)])
        with pytest.raises(ProblemsError, match=r"two of its parts have a file 'mail/seed\.zip'"):
            await run.do(load)
        run.artifacts.put_environment_universe("group", [Ref(id="one", version=1), Ref(id="three", version=1)])
        await run.do(load)
        assert await run.sh("cd /data/in && find . -type f | sort") == "./files/seed.zip\n./mail/seed.zip\n"

    bench(body)
