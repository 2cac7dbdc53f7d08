"""Whether a budget has room for a call: what is wanted, what was spent, and what of the rest is kept free while it runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from agent_env.broker.contract import Budget, Dialect, Price, Refusal

if TYPE_CHECKING:
    from agent_env.stores.connection import Row

BYTES_A_TOKEN: Final = 4
"""Of text, about, while a run has had no answer that tells it better."""
_UNKNOWN_OUTPUT: Final = 32_000
"""The tokens that an answer is reckoned to have at most where its request does not say."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A call that somebody wants to make."""

    dialect: Dialect
    model: str | None
    endpoint: str | None
    request_bytes: int
    ceiling: int | None = None
    """The most tokens that the answer may have, as the request says."""
    answers: int = 1
    """That it asks for at once, each of that length."""
    price: Price | None = None
    request_key: str | None = None
    """What it is recorded under."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """It may be made."""

    call_id: str
    occurrence: int
    """How many calls with the same key the run has made before."""
    ceiling: int | None = None
    """The most tokens that its answer (each, of several) may have, so that the budget holds; None leaves the request as it is."""


@dataclass(frozen=True, slots=True)
class Refused:
    """It may not; or not now."""

    refusal: Refusal
    message: str


Admission = Admitted | Refused | Literal["wait"]


@dataclass(frozen=True, slots=True)
class Room:
    """What is kept free for a call while it runs."""

    tokens: int = 0
    usd: float = 0.0
    ceiling: int | None = None


def judged(budget: Budget, wanted: Wanted, spent: Row) -> Room | Refused | Literal["wait"]:
    """The room that a call gets of a budget, why it gets none, or that it has to wait for others.

    Args:
        budget: What may be used.
        wanted: The call.
        spent: What its account's calls took, and what those that run keep free.
    """
    requests, running = spent.requests or 0, spent.running or 0
    if budget.requests is not None and requests >= budget.requests:
        return _used_up(f"{requests} of {budget.requests} requests")
    if budget.cost_usd is not None and wanted.price is None:
        named = f"model {wanted.model!r}" if wanted.model else "a request that names no model"
        return Refused(
            Refusal.UNPRICED, f"the run has a budget of ${budget.cost_usd:g}, and the configuration has no price for {named} (model.prices)"
        )
    tokens, usd = int(spent.tokens or 0), float(spent.usd or 0.0)
    if budget.tokens is not None and tokens >= budget.tokens:
        return _used_up(f"{tokens} of {budget.tokens} tokens")
    if budget.cost_usd is not None and usd >= budget.cost_usd - 1e-9:
        return _used_up(f"${usd:.6g} of ${budget.cost_usd:g}")
    if budget.concurrency is not None and running >= budget.concurrency:
        return "wait"
    return _room(budget, wanted, spent, tokens, usd)


def _room(budget: Budget, wanted: Wanted, spent: Row, tokens: int, usd: float) -> Room | Refused | Literal["wait"]:
    """Room for the longest answer that it may have; where there is none, it goes alone and gets what is left."""
    if budget.tokens is None and budget.cost_usd is None:
        return Room()
    known = spent.known_bytes or 0
    asked = (
        round(wanted.request_bytes * (spent.known_input / known)) if known and spent.known_input else wanted.request_bytes // BYTES_A_TOKEN
    )
    most = (wanted.ceiling or _UNKNOWN_OUTPUT) * wanted.answers
    price = wanted.price or Price(0.0, 0.0)
    room = Room(asked + most, price.cost(asked, most))
    left: list[float] = []
    if budget.tokens is not None:
        free = budget.tokens - tokens
        if room.tokens > free - (spent.held_tokens or 0):
            left.append(free - asked)
    if budget.cost_usd is not None:
        rest = budget.cost_usd - usd
        if room.usd > rest - float(spent.held_usd or 0.0):
            left.append((rest - price.cost(asked, 0)) * 1e6 / price.output if price.output else most)
    if not left:
        return room
    if spent.running:
        return "wait"
    rest = min(most, int(min(left)))
    if rest < wanted.answers > 1:
        return _used_up(f"what is left is too little for {wanted.answers} answers at once")
    return Room(room.tokens, room.usd, max(1, rest // wanted.answers))


def _used_up(what: str) -> Refused:
    return Refused(Refusal.BUDGET, f"the run's budget for models is used up: {what}")
