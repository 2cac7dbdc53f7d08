"""What is wrong with several things, told at once."""

from __future__ import annotations

import pytest

from agent_env.diagnostics import Diagnostics
from agent_env.errors import ProblemsError, UserError


def test_a_thing_that_an_error_names_itself_is_named_once_among_others() -> None:
    found = Diagnostics()
    for message in ("conf.toml asks for too much", "conf.toml: is cut off", "no such key"):
        found.refuse(UserError(message, concerns="conf.toml"))
    with pytest.raises(ProblemsError) as raised:
        found.tell()
    assert str(raised.value).splitlines() == ["conf.toml: asks for too much", "conf.toml: is cut off", "conf.toml: no such key"]
