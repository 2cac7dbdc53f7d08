"""Packages whose names are imported when they are asked for."""

from __future__ import annotations

import subprocess
import sys

import pytest

import agent_env.artifacts
import agent_env.bundles
import agent_env.stores


@pytest.mark.parametrize("package", [agent_env.artifacts, agent_env.bundles, agent_env.stores])
def test_every_name_that_a_package_lists_is_there(package):
    assert all(getattr(package, name) is not None for name in dir(package))


def test_a_name_that_a_package_lacks_is_an_attribute_error():
    with pytest.raises(AttributeError, match=r"agent_env\.stores.*'Nothing'"):
        _ = agent_env.stores.Nothing


def test_one_name_does_not_import_the_others():
    code = "import sys; from agent_env.stores import Secrets; print('agent_env.stores.journal' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
