"""Where a judge says that its evidence is: places of the document that it was shown, which are looked up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

from agent_env.verifiers.judging.screenshots import Screenshot

Json = Any


class Status(StrEnum):
    """What the evidence says of a criterion. All but the first are the reference's, and forbid a score above 0."""

    SUPPORTED = "supported"
    """It shows that the criterion holds."""
    MISSING = "missing"
    """It does not tell, though it could have."""
    CONTRADICTED = "contradicted"
    """It shows that the criterion does not hold."""
    BLOCKED = "blocked"
    """The agent was kept from what the criterion asks for."""
    UNAVAILABLE = "unavailable"
    """What would tell is not among the evidence."""


STATUSES: Final = tuple(each.value for each in Status)
BAD: Final = frozenset(Status) - {Status.SUPPORTED}
RULES: Final = (
    '"evidence" lists the places that show it: "step N" for a step of the trajectory or of the actions, the name of a screenshot, or the '
    'name of another part of the document ("answer", "case_number" …). "evidence_status" is "supported" where these places show that the '
    'criterion holds, "contradicted" where they show that it does not, "missing" where nothing tells although it could, "blocked" where '
    'the agent was kept from it, and "unavailable" where what would tell is not in the document. Only "supported" allows the score 1.'
)


def places_of(evidence: Mapping[str, Json], screenshots: Sequence[Screenshot]) -> frozenset[str]:
    """Every place of a document that can be pointed at."""
    return frozenset((*evidence, "task", "case_number", *_steps(evidence), *(each.name for each in screenshots)))


def _steps(evidence: Mapping[str, Json]) -> Iterator[str]:
    for part in evidence.values():
        for item in part if isinstance(part, list) else ():
            if isinstance(item, Mapping) and "step" in item:
                yield f"step {item['step']}"


def citations(said: Mapping[str, Json]) -> list[str]:
    """The places that a judge points at."""
    named = said.get("evidence")
    return [str(each).strip() for each in named] if isinstance(named, list) else []


def strangers(said: Mapping[str, Json], places: frozenset[str]) -> list[str]:
    """Places that are not there."""
    return [f"points at {each!r}, which is not in the document" for each in citations(said) if each not in places]


def citing_problems(said: Mapping[str, Json], places: frozenset[str], *, holds: bool) -> list[str]:
    """What is wrong with the evidence for a criterion.

    Args:
        said: The judge's answer.
        places: That there are.
        holds: The judge says that the criterion holds.
    """
    status = said.get("evidence_status")
    if status not in STATUSES:
        return [f"has the evidence_status {status!r}"]
    nothing = holds and status == Status.SUPPORTED and not citations(said)
    return [*strangers(said, places), *(["holds, and points at nothing"] if nothing else ())]
