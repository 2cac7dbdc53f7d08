"""The SDK's own tests of a served environment, on the oldest packages that it promises to work with."""

from __future__ import annotations

import subprocess

import pytest

from tests.interop.test_published_client import ROOT, python


@pytest.mark.timeout(600)
@pytest.mark.parametrize("module", ["test_server", "test_data"])
def test_the_sdk_works_on_the_oldest_packages_that_it_promises(module: str) -> None:
    # Without this project's own settings: its plug-ins are not there.
    options = ["-q", "-c", "/dev/null", "--rootdir", str(ROOT), "--noconftest", "-p", "tests.sdk.conftest", "-p", "no:cacheprovider"]
    command = [python("mcp-1-oldest"), "-m", "pytest", *options, f"tests/sdk/{module}.py"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=590, check=False)
    assert done.returncode == 0, done.stdout[-8000:]
    assert "skipped" not in done.stdout
