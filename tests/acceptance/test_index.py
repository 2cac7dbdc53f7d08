"""Every id of this part has a test that carries it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.acceptance.ids import REQUIRED, TESTS, ids_of, proofs

ROOT = TESTS.parent


def test_every_required_id_has_a_test_that_carries_it() -> None:
    table = proofs()
    assert [id for id in REQUIRED if not table[id]] == []


@pytest.mark.parametrize(
    ("name", "ids"),
    [
        ("test_ex01_a_timeout", {"EX-01"}),
        ("test_ex_01_d03_f9_x", {"EX-01", "D3", "F9"}),
        ("test_a012_b6", {"A12", "B6"}),
        ("test_a2_06_x", {"A2-06"}),
        ("test_a2_of_b", {"A2"}),
        ("test_reads_utf8_f19", {"F19"}),
        ("test_of_a_126_or_2_runs_and_x86_64", set()),
        ("test_must_show_8_json", set()),
    ],
)
def test_ids_are_read_from_names(name: str, ids: set[str]) -> None:
    assert ids_of(name) == ids


def test_a15_without_an_engine_tests_that_need_one_say_what_they_miss() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "tests/acceptance/test_placement.py", "-k", "a16"]
    nowhere = {**os.environ, "DOCKER_HOST": "unix:///nowhere/docker.sock"}
    done = subprocess.run(command, cwd=ROOT, env=nowhere, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout
    assert "1 skipped" in done.stdout
    assert "agentenv-capability-missing: docker_daemon" in done.stdout
