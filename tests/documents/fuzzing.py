"""What fuzzed parsers are asked: a value, or problems; nothing else."""

from __future__ import annotations

from collections.abc import Callable

from agent_env.errors import Problem, ProblemsError


def problems_of(work: Callable[[], object]) -> tuple[Problem, ...]:
    """The problems that `work` ends in; none when it ends well. Any other error is a failure of the test."""
    try:
        work()
    except ProblemsError as error:
        return error.problems or (Problem("an error without problems"),)
    return ()
