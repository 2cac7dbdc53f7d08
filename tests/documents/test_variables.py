"""Names of variables, by the one rule that documents and commands share."""

from __future__ import annotations

import pytest

from agent_env.documents.variables import is_variable_name


@pytest.mark.parametrize(
    ("name", "fits"),
    [("A", True), ("_a1", True), ("", False), ("1A", False), ("A B", False), ("A-B", False), ("A.B", False), ("A=B", False), ("É", False)],
)
def test_a_name_is_one_that_a_shell_could_read(name: str, fits: bool) -> None:
    assert is_variable_name(name) is fits
