"""What the commands that run a conformance kit of checks share: choosing them, listing them, and telling how they end."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeVar

from agent_env.cli.output import line, table, write_json
from agent_env.errors import UsageError

if TYPE_CHECKING:
    from agent_env.conformance import Check, Findings, Verdict

G = TypeVar("G", bound=StrEnum)


def gate_named(gates: type[G], word: str) -> G:
    """The gate of that name.

    Raises:
        UsageError: There is none; names those that there are.
    """
    try:
        return gates(word)
    except ValueError as error:
        raise UsageError(f"there is no gate {word!r}", hint=f"there are {', '.join(gates)}") from error


def show_checks(checks: Sequence[Check[Any]], gates: Sequence[StrEnum], *, as_json: bool) -> None:
    """Lists checks, and whether each counts where these gates do."""
    if as_json:
        rows = [{"id": c.id, "title": c.title, "about": [*c.about], "advisory": c.advisory, "counts": c.gate in gates} for c in checks]
        write_json({"checks": rows})
        return
    table(
        ("CHECK", "ABOUT", "COUNTS", "TITLE"),
        [(c.id, ", ".join(c.about), "yes" if c.gate in gates and not c.advisory else "no", c.title) for c in checks],
    )


def tell(verdict: Verdict) -> None:
    """A check's line, and below it what it has to say. Those that were not run are summed up: all for one reason."""
    if verdict.result == "not_run":
        return
    mark = f"{verdict.result} (advisory)" if verdict.check.advisory and verdict.result == "failed" else str(verdict.result)
    line(f"{mark:18}{verdict.seconds:7.2f} s  {verdict.check.id}")
    if verdict.detail:
        line(f"{'':29}{verdict.detail}")


def summed_up(findings: Findings) -> str:
    """How many ended how, and which gates failed."""
    counts = {result: sum(1 for verdict in findings.verdicts if verdict.result == result) for result in ("passed", "failed", "skipped")}
    said = ", ".join(f"{count} {result}" for result, count in counts.items())
    not_run = [verdict for verdict in findings.verdicts if verdict.result == "not_run"]
    if not_run:
        said += f", {len(not_run)} not run ({not_run[-1].detail})"
    return f"{said}; failed gates: {', '.join(findings.failed)}" if findings.failed else said
