"""Where models are asked, each with the key that was configured for it and for nothing else. Held in memory, and never shown."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from agent_env.broker.contract import Dialect, Price
from agent_env.broker.dialects import VERSION, Route
from agent_env.redaction import is_masked_config_key

Headers = Sequence[tuple[bytes, bytes]]
_BEARER: Final = "authorization"
_KEY_HEADERS: Final = (_BEARER, "x-api-key", "x-goog-api-key", "api-key")
_OWN: Final = frozenset(
    {
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer", "upgrade"),
        *("transfer-encoding", "host", "content-length", "accept-encoding", "expect", "cookie", "forwarded", "x-forwarded-for"),
        *_KEY_HEADERS,
    }
)
"""Headers that belong to one of the two connections alone."""
_KEY_PARAMETER: Final = "key"


@dataclass(frozen=True, slots=True, repr=False)
class Endpoint:
    """One model API."""

    name: str
    base_url: str
    key: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Sent with every request."""
    dialects: tuple[str, ...] = ()
    """What it speaks; none named: all."""
    models: tuple[str, ...] = ()
    """Patterns (`claude-*`) of models that it has; none named: all."""
    hidden: tuple[str, ...] = ()
    """Further secrets among the headers: what references stood for."""
    problem: str | None = None
    """Why it can't be asked: a key that could not be found. Told at the first call, and no sooner."""

    def serves(self, dialect: Dialect, model: str | None) -> bool:
        """Whether a request is for it."""
        speaks = not self.dialects or dialect.value in self.dialects
        return speaks and (not self.models or (model is not None and any(fnmatchcase(model, pattern) for pattern in self.models)))

    def address(self, route: Route, path: str, query: str) -> str:
        """Where a request goes. A base that ends in a version (`…/v1`) gets what stands below one, any other the path as it is. The base's
        own query comes first, and nobody else gives its parameters.
        """
        base = urlsplit(self.base_url)
        above = base.path.rstrip("/")
        below = f"/{route.resource}" if VERSION.search(above) else path
        own = parse_qsl(base.query, keep_blank_values=True)
        taken = {_KEY_PARAMETER, *(name for name, _ in own)}
        more = [(name, value) for name, value in parse_qsl(query, keep_blank_values=True) if name not in taken]
        return urlunsplit((base.scheme, base.netloc, above + below, urlencode([*own, *more]), ""))

    def request_headers(self, given: Headers) -> list[tuple[str, str]]:
        """What is sent: the agent's own headers, the key where the agent had put its token, and what the configuration adds."""
        told = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in given]
        own = {name.lower() for name in self.headers}
        kept = [(name, value) for name, value in told if name not in _OWN and name not in own]
        ways = [name for name, _ in told if name in _KEY_HEADERS] or ["x-goog-api-key"]
        keyed = [(way, f"Bearer {self.key}" if way == _BEARER else self.key) for way in dict.fromkeys(ways) if self.key and way not in own]
        return [*kept, ("accept-encoding", "identity"), *keyed, *self.headers.items()]

    def secrets(self) -> Iterator[str]:
        """What must be seen nowhere."""
        yield self.key
        yield from self.hidden
        told = (value for name, value in self.headers.items() if is_masked_config_key(name))
        yield from (part for value in told for part in (value, value.partition(" ")[2]))


@dataclass(frozen=True, slots=True, repr=False)
class Endpoints:
    """Every endpoint of a configuration, the first that serves a request is asked, and what models cost."""

    all: tuple[Endpoint, ...]
    prices: Mapping[str, Price] = field(default_factory=dict)
    """By the model's name, or a pattern of names."""

    def choose(self, dialect: Dialect, model: str | None) -> Endpoint | None:
        """The endpoint for a request."""
        return next((each for each in self.all if each.serves(dialect, model)), None)

    def price(self, model: str | None) -> Price | None:
        """What a model costs, by its own name or else by the longest pattern; None when the configuration does not say."""
        if model is None:
            return None
        fitting = [pattern for pattern in self.prices if fnmatchcase(model, pattern)]
        return self.prices[model] if model in self.prices else self.prices[max(fitting, key=len)] if fitting else None

    def secrets(self) -> Iterator[str]:
        """What must be seen nowhere."""
        for each in self.all:
            yield from each.secrets()

    def plain(self) -> dict[str, Any]:
        """For the keeper's socket, and nowhere else."""
        return {"all": [asdict(each) for each in self.all], "prices": {name: asdict(price) for name, price in self.prices.items()}}

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Endpoints:
        """The inverse of `plain`."""
        made = (
            Endpoint(**{**each, "dialects": tuple(each["dialects"]), "models": tuple(each["models"]), "hidden": tuple(each["hidden"])})
            for each in data["all"]
        )
        return cls(tuple(made), {name: Price(**price) for name, price in data["prices"].items()})

    def name_for(self, proof: str) -> str:
        """What a grant calls them. Nothing can be learnt from it.

        Args:
            proof: Derived from the installation's key, so that the name is no plain digest of a key.
        """
        return hashlib.sha256(f"{proof}{json.dumps(self.plain(), sort_keys=True)}".encode()).hexdigest()[:32]


def token_in(headers: Headers, query: str) -> str | None:
    """The token that a request shows, wherever its dialect puts keys."""
    told = {name.decode("latin-1").lower(): value.decode("latin-1").strip() for name, value in headers}
    shown: Iterable[str] = (told.get(name, "") for name in _KEY_HEADERS[1:])
    bearer = told.get(_BEARER, "")
    found = bearer.partition(" ")[2].strip() if bearer[:7].lower() == "bearer " else ""
    return found or next(filter(None, shown), "") or dict(parse_qsl(query)).get(_KEY_PARAMETER) or None
