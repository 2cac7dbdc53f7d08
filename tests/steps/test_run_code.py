"""`run_code` on a machine place: its contract, its limits, and nothing left behind."""

from __future__ import annotations

import asyncio
import json
import textwrap
from pathlib import PurePosixPath
from typing import Any

import pytest

from agent_env.errors import LaunchError, LimitHitError, RunCodeExecutionError, RunCodeValidationError
from agent_env.places import Command, Upload
from agent_env.steps import parse_step
from agent_env.steps.python_code import STAGING, uncaught
from agent_env.waiting import poll
from tests.busy import lasting
from tests.steps.bench import BenchRun
from tests.steps.conftest import Bench


def script(run: BenchRun, text: str, id: str = "s") -> dict[str, Any]:
    run.artifacts.put_file(id, text.encode(), filename="check.py")
    return {"type": "run_code", "script_artifact_id": id}


async def left(run: BenchRun) -> str:
    return await run.sh(f"ls -A {STAGING} 2>/dev/null || true")


def test_a_result_is_kept_under_its_id_and_later_scripts_see_it(bench: Bench) -> None:
    async def body(run: BenchRun) -> None:
        await run.do({**script(run, "def run(given):\n    return {'n': given['args']['n'] * 2}"), "args": {"n": 4}, "result_id": "first"})
        await run.do({**script(run, "def run(given):\n    return given", "t"), "id": "second"})
        assert run.metadata["script_results"]["first"] == {"n": 8}
        assert run.metadata["script_results"]["second"] == {"args": {}, "results": {"first": {"n": 8}}}
        assert await left(run) == ""

    bench(body)


def test_a12_c10_it_runs_as_root_in_the_places_folder_from_a_private_folder_of_its_own(bench: Bench) -> None:
    text = """
import os, sys, stat
def run(given):
    folder = os.path.dirname(os.path.abspath(__file__))
    modes = [oct(stat.S_IMODE(os.stat(path).st_mode)) for path in (folder, os.path.dirname(folder), os.path.join(folder, "input.json"))]
    return {"uid": os.getuid(), "cwd": os.getcwd(), "folder": folder, "modes": modes, "home": os.environ.get("HOME")}
"""

    async def body(run: BenchRun) -> None:
        await run.do({**script(run, text), "id": "odd/id é"})
        first = run.metadata["script_results"]["odd/id é"]
        assert (first["uid"], first["cwd"]) == (0, "/app")
        assert first["modes"] == ["0o700", "0o700", "0o600"]
        assert PurePosixPath(first["folder"]).parent == STAGING
        await run.do({**script(run, text), "id": "odd/id é"})
        assert run.metadata["script_results"]["odd/id é"]["folder"] != first["folder"]
        assert await left(run) == ""

    bench(body)


def test_c14_python_members_are_staged_side_by_side_and_others_stay_behind(bench: Bench) -> None:
    async def body(run: BenchRun) -> None:
        run.artifacts.put_universe(
            "u",
            {
                "pkg/run.py": b"from . import near\nimport far, os\n"
                b"def run(g):\n    return [near.x, far.y, sorted(os.listdir(os.path.dirname(__file__)))]",
                "pkg/near.py": b"x = 1",
                "far.py": b"y = 2",
                "pkg/data.csv": b"1,2",
            },
        )
        await run.do({"type": "run_code", "script_artifact_id": "u", "id": "r"})
        first, second, names = run.metadata["script_results"]["r"]
        assert (first, second) == (1, 2)
        assert "data.csv" not in names
        assert run.metadata["script_logs"]["r"] == {"not_staged": ["pkg/data.csv"]}

    bench(body)


def test_what_a_script_prints_is_kept_and_bytes_that_are_not_utf8_survive_f19(bench: Bench) -> None:
    async def body(run: BenchRun) -> None:
        text = "import sys, os\ndef run(g):\n    print('hello')\n    os.write(2, bytes(range(256)))\n    return 1"
        await run.do({**script(run, text), "id": "r"})
        log = run.metadata["script_logs"]["r"]
        assert log["stdout"] == "hello"
        assert "abc" in log["stderr"]
        json.dumps(run.context)

    bench(body)


def test_a_script_that_uses_up_the_places_memory_met_a_limit_and_is_told_which(bench: Bench) -> None:
    async def body(run: BenchRun) -> None:
        hog = "def run(given):\n    x = []\n    while True:\n        x.append(bytearray(b'x') * 10000000)"
        with pytest.raises(LimitHitError, match=r"memory limit of \d+ bytes"):
            await run.do({**script(run, hog), "timeout_seconds": 30})
        assert await left(run) == ""

    bench(body)


def test_a_script_that_a_limit_of_its_own_ended_says_which(bench: Bench) -> None:
    async def body(run: BenchRun) -> None:
        limited = "import resource\ndef run(given):\n    resource.setrlimit(resource.RLIMIT_CPU, (1, 9))\n    while True: pass"
        with pytest.raises(RunCodeExecutionError, match=r"exited 152 \(signal 24; its limit of processor time was reached\)"):
            await run.do(script(run, limited))

    bench(body)


def test_c12_a_crash_is_an_error_with_the_whole_of_its_last_words(bench: Bench) -> None:
    async def body(run: BenchRun) -> None:
        text = "import sys\ndef run(g):\n    sys.stderr.write('<' + 'x' * 20000 + '>')\n    sys.exit(3)"
        with pytest.raises(RunCodeExecutionError) as caught:
            await run.do({**script(run, text), "id": "r"})
        assert str(caught.value) == f"run_code 'r': exited 3: <{'x' * 20000}>"
        assert await left(run) == ""

    bench(body)


def test_c12_f18_standard_error_is_kept_to_its_last_mebibyte_with_a_mark_of_what_was_cut(bench: Bench) -> None:
    async def body(run: BenchRun) -> None:
        text = "import sys\ndef run(g):\n    for _ in range(64):\n        sys.stderr.write('x' * 65536)\n    sys.exit('the end')"
        with pytest.raises(RunCodeExecutionError) as caught:
            await run.do({**script(run, text), "id": "r"})
        message = str(caught.value)
        dropped = 64 * 65536 + len("the end\n") - 1024 * 1024
        assert message.startswith(f"run_code 'r': exited 1: [{dropped} bytes before this were cut] xxx")
        assert message.endswith("the end")

    bench(body)


def test_c12_ex01_ex02_ex04_at_the_limit_the_whole_tree_is_gone_and_what_it_said_is_told(bench: Bench) -> None:
    text = """
import os, signal, subprocess, time
def run(given):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("before", flush=True)
    os.write(2, b"err")
    subprocess.Popen(["setsid", "sh", "-c", "trap '' TERM; sleep 97 & sleep 98"], start_new_session=True)
    time.sleep(99)
"""

    async def body(run: BenchRun) -> None:
        limit = lasting(1)
        with pytest.raises(RunCodeExecutionError, match=f"timed out after {limit:g}s") as caught:
            await run.do({**script(run, text), "timeout_seconds": limit})
        assert "before" in str(caught.value)
        assert "err" in str(caught.value)
        assert await run.sh("cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -o 'sleep 9[789]' || true") == ""
        assert await left(run) == ""

    bench(body)


def test_a_script_that_exits_124_by_itself_did_not_time_out(bench: Bench) -> None:
    async def body(run: BenchRun) -> None:
        with pytest.raises(RunCodeExecutionError, match=r"exited 124$"):
            await run.do(script(run, "import sys\ndef run(g):\n    sys.exit(124)"))
        with pytest.raises(RunCodeExecutionError, match=r"exited 5: only on stdout$"):
            await run.do(script(run, "import sys\ndef run(g):\n    print('only on stdout')\n    sys.exit(5)"))
        with pytest.raises(RunCodeExecutionError, match=r"exited 137 \(signal 9\)"):
            await run.do(script(run, "import os\ndef run(g):\n    os.kill(os.getpid(), 9)"))

    bench(body)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            'Traceback (most recent call last):\n  File "run.py", line 2, in run\n    raise E("no")\nE: no\nmore',
            "run.py, line 2: E: no\nmore",
        ),
        ('noise\n  File "run.py", line 1\n    def run(:\n            ^\nSyntaxError: bad', "run.py, line 1: SyntaxError: bad"),
        (
            'Traceback (most recent call last):\n  File "a.py", line 2, in x\nKeyError: 1\n\nDuring handling of …:\n\n'
            'Traceback (most recent call last):\n  File "run.py", line 9, in run\n    f()\n'
            '  File "/usr/lib/python3/json/__init__.py", line 3, in f\n    x\n  [Previous line repeated 3 more times]\nE: last',
            "run.py, line 9: E: last",
        ),
        ('Traceback (most recent call last):\n  File "/usr/lib/x.py", line 9, in run\nE: last', "E: last"),
        ('cut:\n  File "run.py", line 9, in run\n', ""),
        ("no traceback", ""),
        ("", ""),
    ],
)
def test_an_uncaught_error_is_told_by_where_it_was_met_and_itself(said: str, told: str) -> None:
    assert uncaught(said) == told


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("import sys\ndef run(g):\n    sys.exit(0)", "wrote no result file"),
        ("import os\ndef run(g):\n    os._exit(0)", "wrote no result file"),
        ("def run(g):\n    return float('nan')", "the result is not JSON"),
        ("def run(g):\n    return {1, 2}", "the result is not JSON"),
        ("def run(g):\n    return {1: 'a', '1': 'b'}", "the result is not JSON"),
        ("def main(g):\n    return 1", "check.py has no function 'run'"),
        ("def run(g):\n    return 'x' * (60 * 1024 * 1024)", "result exceeds 52428800-byte cap"),
    ],
)
def test_c12_what_is_no_result_is_a_validation_error(bench: Bench, text: str, says: str) -> None:
    async def body(run: BenchRun) -> None:
        with pytest.raises(RunCodeValidationError, match=says):
            await run.do(script(run, text))
        assert await left(run) == ""

    bench(body)


def test_c11_a_second_attempt_never_reads_the_first_ones_output_or_modules(bench: Bench) -> None:
    async def body(run: BenchRun) -> None:
        run.artifacts.put_universe("u", {"run.py": b"import mate\ndef run(g):\n    return mate.x", "mate.py": b"x = 'old'"})
        await run.do({"type": "run_code", "script_artifact_id": "u", "id": "r"})
        run.artifacts.put_universe("u", {"run.py": b"import mate\ndef run(g):\n    return mate.x"})
        with pytest.raises(RunCodeExecutionError, match="No module named 'mate'"):
            await run.do({"type": "run_code", "script_artifact_id": "u", "id": "r"})

    bench(body)


def test_c12_more_than_5_mib_of_python_is_refused(bench: Bench) -> None:
    async def body(run: BenchRun) -> None:
        half = b"#" * (5 * 1024 * 1024 // 2)
        run.artifacts.put_universe("fits", {"run.py": b"def run(g):\n    return 1\n" + half[25:], "b.py": half})
        await run.do({"type": "run_code", "script_artifact_id": "fits"})
        run.artifacts.put_universe("big", {"run.py": half, "b.py": half + b"#"})
        with pytest.raises(RunCodeValidationError, match="more than 5242880"):
            await run.do({"type": "run_code", "script_artifact_id": "big"})

    bench(body)


def test_a14_an_orphan_of_a_killed_attempt_is_stopped_and_can_not_write_a_result(bench: Bench) -> None:
    """A process of ours that was killed leaves its script running and its folder staged."""

    async def body(run: BenchRun) -> None:
        place = await run.box()
        folder = STAGING / "r-att-00000000000000"
        other = STAGING / "r-2-att-11111111111111"
        await place.put([Upload(STAGING, None, 0o700), Upload(folder / "poison", b""), Upload(other / "keep", b"")], owner="0:0")
        orphan = await place.start(
            Command(["sh", "-c", "sleep 60; echo '\"poison\"' > output.json"], cwd=folder, attempt="att-00000000000000")
        )
        neighbour = await place.start(Command(["sleep", "60"], attempt="att-11111111111111"))
        await run.do({**script(run, "def run(g):\n    return 'mine'"), "id": "r"})
        assert run.metadata["script_results"]["r"] == "mine"

        async def only_the_neighbour() -> bool | None:
            running = {entry.attempt for entry in await place.ledger() if entry.running}
            return True if running == {"att-11111111111111"} else None

        assert await poll(only_the_neighbour, within_seconds=60, what="the end of the orphan and of the script")
        assert await left(run) == f"{other.name}\n"
        await neighbour.aclose()
        await orphan.aclose()

    bench(body)


@pytest.mark.parametrize("mode", ["0", "444", "555"])
def test_folders_that_a_script_closed_are_removed_with_the_rest_and_hold_up_no_later_attempt(bench: Bench, mode: str) -> None:
    closing = f"""
        import os
        def run(given):
            folder = os.path.dirname(__file__) + "/x/y"
            os.makedirs(folder)
            open(folder + "/z", "w").close()
            os.chmod(folder, 0o{mode})
            return 1
    """

    async def body(run: BenchRun) -> None:
        await run.sh(f"mkdir -p {STAGING}/r-att-00000000000000/d/e && chmod 700 {STAGING}")
        await run.sh(f"cd {STAGING}/r-att-00000000000000 && touch d/f d/e/g && chmod {mode} d/e d")
        await run.do({**script(run, textwrap.dedent(closing)), "id": "r"})
        assert await left(run) == ""

    bench(body)


def test_tp08_what_lies_in_the_users_site_neither_runs_by_itself_nor_replaces_anything_and_is_still_found(bench: Bench) -> None:
    """An agent can write there; so can an author's own `pip install`."""
    looking = """
        import json, sys
        import installed
        try:
            import pip as shadowed  # of the system's packages, where the place has it
            where = shadowed.__file__
        except ImportError:
            where = ""
        def run(given):
            return [installed.VALUE, json.dumps(1), hasattr(sys, "planted"), where]
    """
    planted = "import sys; sys.planted = True"

    async def body(run: BenchRun) -> None:
        site = (await run.sh("python3 -c 'import site; print(site.getusersitepackages())'")).strip()
        await run.sh(f"mkdir -p {site} && cd {site} && echo 'VALUE = 7' > installed.py")
        for name in ("evil.pth", "usercustomize.py", "sitecustomize.py", "json.py"):
            await run.sh(f"echo '{planted}' > {site}/{name}")
        assert await run.sh("python3 -c 'import sys; print(hasattr(sys, \"planted\"))'") == "True\n"  # it is a real attack
        system = (await run.sh("python3 -s -c 'import pip; print(pip.__file__)' 2>/dev/null || true")).strip()
        await run.sh(f"mkdir {site}/pip && echo '{planted}' > {site}/pip/__init__.py")
        await run.do({**script(run, textwrap.dedent(looking)), "id": "r"})
        value, text, was_planted, where = run.metadata["script_results"]["r"]
        assert (value, text) == (7, "1")
        if system:
            assert (was_planted, where) == (False, system)

    bench(body)


def test_tp08_a_staging_folder_that_others_can_write_to_is_not_trusted(bench: Bench) -> None:
    async def body(run: BenchRun) -> None:
        await run.sh(f"mkdir -p /app/mine && ln -s /app/mine {STAGING}")
        await run.do({**script(run, "import os\ndef run(g):\n    return os.path.realpath(__file__)"), "id": "r"})
        assert run.metadata["script_results"]["r"].startswith(f"{STAGING}/")
        await run.sh(f"chmod 777 {STAGING}; touch {STAGING}/planted")
        await run.do({**script(run, "def run(g):\n    return 1"), "id": "r"})
        assert await run.sh(f"stat -c %a {STAGING}; ls -A {STAGING}") == "700\n"

    bench(body)


def test_c10_cancelling_stops_the_script_and_removes_its_folder(bench: Bench) -> None:
    async def body(run: BenchRun) -> None:
        work = asyncio.create_task(run.do(script(run, "import time\ndef run(g):\n    time.sleep(77)")))
        place = await run.box()
        while not [entry for entry in await place.ledger() if entry.running]:
            await asyncio.wait([work], timeout=0.01)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        assert [entry for entry in await place.ledger() if entry.running] == []
        assert await left(run) == ""

    bench(body)


def test_a16_a_place_without_python3_is_told_by_the_step_that_needs_it(bench: Bench) -> None:
    async def body(run: BenchRun) -> None:
        run.path = "/root/empty"
        with pytest.raises(LaunchError, match=r"could not start python3.*needs python3"):
            await run.do(script(run, "def run(g):\n    return 1"))

    bench(body)


def test_c10_steps_at_once_in_one_place_do_not_disturb_each_other(bench: Bench) -> None:
    async def body(run: BenchRun) -> None:
        run.artifacts.put_file("s", b"def run(g):\n    return g['args']['n']", filename="s.py")
        step = run.step({"type": "run_code", "script_artifact_id": "s", "id": "same"})

        async def one(number: int) -> object:
            attempt = BenchAttempt(run, f"att-{number:014}")
            return (await step.model_copy(update={"args": {"n": number}, "id": f"s{number}"}).execute(attempt)).value

        assert await asyncio.gather(*(one(number) for number in range(12))) == list(range(12))
        assert await left(run) == ""

    bench(body)


class BenchAttempt:
    """Another attempt of the same run at the same time."""

    def __init__(self, run: BenchRun, attempt_id: str) -> None:
        self._run = run
        self.attempt_id = attempt_id

    def __getattr__(self, name: str) -> Any:
        return getattr(self._run, name)


class Known:
    """What a plan knows of artifacts."""

    def __init__(self, type: str | None, *names: str) -> None:
        self.artifacts = self
        self.type, self.names = type, names

    def artifact(self, id: str, version: int | None) -> dict[str, Any] | None:
        return None if self.type is None else {"id": id, "type": self.type}

    def artifact_files(self, id: str, version: int | None) -> tuple[str, ...]:
        return self.names


@pytest.mark.parametrize(
    ("plan", "fields", "says"),
    [
        (Known(None), {}, ".script_artifact_id: artifact 's' does not exist"),
        (
            Known("skill", "SKILL.md"),
            {},
            ".script_artifact_id: run_code 'r': artifact 's' is of type 'skill'; a file or universe is needed",
        ),
        (Known("file_artifact_universe", "a.py", "b.py"), {}, "several .py members and no run.py: a.py, b.py (set script_file)"),
        (
            Known("file_artifact_universe", "a.py"),
            {"script_file": "z.py"},
            ".script_file: run_code 'r': script_file 'z.py' is not in the universe",
        ),
        (Known("file", "a.py"), {"script_file": "a.py"}, ".script_file: run_code 'r': script_file is for universes"),
    ],
)
def test_c14_what_is_found_before_anything_starts(plan: Known, fields: dict[str, Any], says: str) -> None:
    data = {"id": "r", "type": "run_code", "script_artifact_id": "s", "sandbox_name": "box", **fields}
    found = [str(problem) for problem in parse_step(data, source="t").problems(plan)]
    assert len(found) == 1
    assert says in found[0]
