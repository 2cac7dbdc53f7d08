"""The committed binaries: what their source says, on both architectures, and small."""

from __future__ import annotations

import importlib.util
import json
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from agent_env.errors import UnsupportedError
from agent_env.places import Command, Upload
from agent_env.places.helper import HelperConfig, binary_path
from tests.helper.living import ENV, TOKEN, end, launch
from tests.helper.test_files import pure

ROOT = Path(__file__).parents[2]
ARCHITECTURES = ["x86_64", "aarch64"]


needs_compiler = pytest.mark.skipif(importlib.util.find_spec("ziglang") is None, reason="agentenv-capability-missing: ziglang")


@pytest.mark.timeout(600)
@needs_compiler
@pytest.mark.parametrize("architecture", ["x86_64", pytest.param("aarch64", marks=pytest.mark.slow)])
def test_the_committed_binaries_are_what_the_source_builds_bit_for_bit(architecture: str) -> None:
    command = [sys.executable, str(ROOT / "helper/build.py"), "--check", "--architecture", architecture]
    done = subprocess.run(command, capture_output=True, text=True, cwd="/", check=False)
    assert done.returncode == 0, done.stderr


@needs_compiler
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_committed_binary_is_the_one_that_was_built_from_the_committed_source(architecture: str) -> None:
    """So a build of one architecture shows what the source makes, and the other need not be built each time (half a minute of a core)."""
    build = runpy.run_path(str(ROOT / "helper/build.py"))
    assert json.loads(build["RECORD"].read_text())[architecture] == build["facts"](binary_path(architecture)), "run `make helper`"


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_binary_is_small_static_and_names_no_machine(architecture: str) -> None:
    data = binary_path(architecture).read_bytes()
    assert len(data) <= 110_000
    assert b"/lib/ld-" not in data
    assert str(ROOT).encode() not in data
    assert b"zig-cache" not in data


def test_an_unknown_architecture_is_refused_by_name() -> None:
    assert binary_path("arm64") == binary_path("aarch64")
    with pytest.raises(UnsupportedError, match="riscv64"):
        binary_path("riscv64")


def test_no_source_file_of_the_helper_is_longer_than_600_lines() -> None:
    assert not [path.name for path in (ROOT / "helper").glob("*.[ch]") if len(path.read_text().splitlines()) > 600]


async def test_the_aarch64_binary_serves_a_place(tmp_path: Path) -> None:
    emulator = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")
    if emulator is None:
        pytest.skip("agentenv-capability-missing: qemu-aarch64")
    living = launch(tmp_path, HelperConfig(token=TOKEN, env=ENV), prefix=[emulator], binary=binary_path("aarch64"))
    try:
        place = await living.connect()
        done = await place.run(Command(["sh", "-c", "cat; echo err >&2; exit 3"], stdin=b"in"))
        assert (done.exit_code, done.stdout, done.stderr) == (3, b"in", b"err\n")
        target = pure(tmp_path / "a/b")
        await place.put([Upload(target, b"x" * 100_000)])
        assert await place.read(target) == b"x" * 100_000
        await place.shut_down()
        await place.aclose()
    finally:
        end(living)
