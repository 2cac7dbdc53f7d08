"""Tables of the configuration that are for a provider which is not there, so that nothing reads them.

Looked for only where there is such a table: looking at what is installed costs more than the rest of a start.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from agent_env.documents.spelling import near
from agent_env.errors import Problem, ProblemsError

if TYPE_CHECKING:
    from agent_env.config import Config

_PREFIX = "sandbox.providers."


def refuse_misspelt(config: Config) -> list[Problem]:
    """Tables of providers that are not there, as warnings.

    Raises:
        ProblemsError: One has nearly the name of one that is there, which it is then meant for.
    """
    found = list(unread_tables(config))
    misspelt = [problem for problem in found if problem.hint]
    if misspelt:
        raise ProblemsError(misspelt)
    return found


def unread_tables(config: Config) -> Iterator[Problem]:
    """Tables of providers that are not there; one that is nearly spelt as one that is there has a hint."""
    from agent_env.sandboxes.registry import BUILT_IN, known

    tables = {name: table for name, table in config.sandbox.providers.items() if name not in BUILT_IN}
    there = {name for name, table in tables.items() if "impl" in table}
    if not tables.keys() - there:
        return
    there |= known()
    for name in sorted(tables.keys() - there):
        meant = near(name, sorted(there))
        hint = f"did you mean [{_PREFIX}{meant}]?" if meant else None
        yield Problem(f"no provider {name!r} is installed, so nothing reads [{_PREFIX}{name}]", _source(config, name), hint=hint)


def _source(config: Config, name: str) -> str:
    return config.origins[f"{_PREFIX}{name}"][0].name
