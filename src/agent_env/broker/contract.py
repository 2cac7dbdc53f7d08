"""The model broker's contract: what an agent is given instead of a key, what may be used up, and what was.

An agent talks to the broker on its own loopback, with a token of its run, in whichever dialect it speaks. The broker knows who asks by the
token, puts the real key in its place, and counts. It must not know of steps, sandboxes or engines.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import Any, Final, Literal, Protocol

MODELS_PORT: Final = 61081
"""Where the broker answers on a place's own loopback, beside the keeper's way out. Above the ports that kernels hand out by themselves."""

KEY_VARIABLE: Final = "LITELLM_API_KEY"
"""By which agents are given their key, and users name theirs (reference)."""

Role = Literal["agent", "user", "judge"]
"""Who asks: an agent, a simulated user, a judge. The run's budget is for agents and users; judges have one of their own, so that an agent
can't use up what grades it."""


class Dialect(StrEnum):
    """A model API, as the broker carries it."""

    CHAT = "openai-chat"
    RESPONSES = "openai-responses"
    MESSAGES = "anthropic-messages"
    GEMINI = "gemini"


class Refusal(StrEnum):
    """Why the broker itself refused a call: the `code` in its error body, in the shape of the caller's dialect."""

    TOKEN = "invalid_token"
    BUDGET = "budget_exceeded"
    UNPRICED = "model_unpriced"
    UNCONFIGURED = "model_not_configured"
    KEY = "model_key_missing"
    UNAVAILABLE = "model_unavailable"
    NOT_RECORDED = "not_recorded"
    UNKNOWN = "unknown_request"


@dataclass(frozen=True, slots=True)
class ModelAccess:
    """How one agent asks for models. The same for every dialect."""

    base_url: str
    """As seen from the place, without a dialect's path: `http://127.0.0.1:61081`. The dialects' usual paths are below it."""
    token: str = field(repr=False)
    """What the agent sends as its API key. It is worth nothing anywhere else, and nothing once the run is over."""
    model: str | None = None
    """The model where nobody names one."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """To be sent along; empty with the broker, which adds them itself."""
    brokered: bool = True
    """False: these are the real endpoint and the real key (`model.broker = false`)."""

    def variables(self) -> Mapping[str, str]:
        """The variables by which agents find it (reference). Secrets: give them as such."""
        values = {"LITELLM_BASE_URL": self.base_url, KEY_VARIABLE: self.token}
        return values | ({"LITELLM_EXTRA_HEADERS": json.dumps(dict(self.headers))} if self.headers else {})


@dataclass(frozen=True, slots=True)
class Budget:
    """What may be used up. None is without limit."""

    requests: int | None = None
    tokens: int | None = None
    """Of input and output together."""
    cost_usd: float | None = None
    concurrency: int | None = None
    """Calls at once; those beyond it wait for their turn."""

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Budget:
        """From a table of the configuration, which was checked, or from a record."""
        return cls(**{each.name: values[each.name] for each in fields(cls) if values.get(each.name) is not None})

    def plain(self) -> dict[str, Any]:
        """What `of` reads, without what has no limit."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, slots=True)
class Price:
    """What a model costs, in US dollars for a million tokens. Only what the configuration says; nothing is known by itself."""

    input: float
    output: float
    cached_input: float | None = None
    """What was read from the provider's cache; None: like other input."""

    def cost(self, input_tokens: int, output_tokens: int, cached_tokens: int = 0) -> float:
        """Dollars for one call. `input_tokens` holds the cached ones too."""
        cached = self.input if self.cached_input is None else self.cached_input
        return ((input_tokens - cached_tokens) * self.input + cached_tokens * cached + output_tokens * self.output) / 1e6


@dataclass(frozen=True, slots=True)
class Usage:
    """What calls used. Sums of rows of the run database."""

    requests: int = 0
    """Calls that were let through, also those that the model then failed."""
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cost_usd: float | None = None
    """None when a call's model has no price in the configuration (or nothing was asked)."""
    estimated: int = 0
    """Calls whose tokens the provider did not tell (streams that broke off), so that they are counted from the text that went over."""
    refused: int = 0
    """Calls that the broker refused."""
    problem: Refusal | None = None
    """Why the last call of these was refused; None when it wasn't. `BUDGET` is the agent's own end, all others are faults of ours."""
    message: str | None = None
    """The same for people."""

    @property
    def total_tokens(self) -> int:
        """Input and output."""
        return self.input_tokens + self.output_tokens


@dataclass(frozen=True, slots=True)
class ChatAnswer:
    """What a model answered to `Models.chat`."""

    text: str
    message: Mapping[str, Any]
    """As the model sent it, with its calls of tools."""
    model: str
    finish: str | None
    usage: Usage


class Models(Protocol):
    """What a run offers its steps (`Run.models`)."""

    async def access(
        self, holder: str, *, role: Role = "agent", model: str | None = None, base_url: str | None = None, shared_loopback: bool = False
    ) -> ModelAccess | None:
        """What an agent is given; None where no model is configured, and nothing is recorded or replayed. Asking again gives the same, and
        is what a resume does. Needs no key and asks no model: what is missing is told at the first call.

        Whoever deploys the agent has its place lead there if it is brokered, `lead_to_host({MODELS_PORT: keeper.MODELS})`, or carries
        `keeper.ToHost(MODELS_PORT, keeper.MODELS)`.

        Args:
            holder: The agent's name in the run.
            role: Whose budget it is.
            model: Where the agent names none; None is the configuration's for the role.
            base_url: Another endpoint than the configured one (`litellm_base_url` of a step). No key that was configured goes there.
            shared_loopback: The place has no loopback of its own (the bare host, the machine's own network).

        Raises:
            InfrastructureError: The keeper can't be had.
        """
        ...

    async def begin_turn(self, holder: str, turn: str) -> None:
        """The calls of that holder from now on belong to that turn."""
        ...

    async def usage(self, *, holder: str | None = None, turn: str | None = None, role: Role | None = None) -> Usage:
        """What was used so far, of everything that fits."""
        ...

    async def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        role: Role,
        holder: str,
        model: str | None = None,
        params: Mapping[str, Any] | None = None,
        response_format: Mapping[str, Any] | None = None,
        timeout_seconds: float | None = None,
    ) -> ChatAnswer:
        """Asks a model from this process, for judges and simulated users: counted, recorded and replayed like an agent's calls.

        Args:
            messages: As of OpenAI's chat completions.
            role: Whose budget, and which model where none is named.
            holder: Who asks: a step's id.
            model: None is the configuration's for the role.
            params: Further fields of the request (`temperature`, `seed` …), over those of the configuration.
            response_format: A JSON schema that the answer has to follow.
            timeout_seconds: None is `limits.model_seconds`.

        Raises:
            UserError: No endpoint or model is configured.
            BudgetExceededError: The budget of that role is used up.
            ModelUnavailableError: The model can't be asked, or its answer is none.
        """
        ...


_TOKEN = re.compile(r"aem-(?P<grant>[0-9a-f]{24})-(?P<proof>[0-9a-f]{64})")


def split_token(token: str) -> tuple[str, str] | None:
    """The grant that a token names, and what proves it; None when it is no token of ours."""
    found = _TOKEN.fullmatch(token)
    return (found["grant"], found["proof"]) if found else None


def grant_id(run_id: str, holder: str, role: Role) -> str:
    """The id of a holder's leave to ask: the same each time it is asked for."""
    return hashlib.sha256(f"{run_id}\0{role}\0{holder}".encode()).hexdigest()[:24]


def spelled_token(grant: str, proof: str) -> str:
    """The token of a grant."""
    return f"aem-{grant}-{proof}"
