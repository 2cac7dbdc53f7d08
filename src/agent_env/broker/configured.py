"""The endpoints that a configuration names, with the keys that its references stand for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from agent_env.broker.contract import Price
from agent_env.broker.endpoints import Endpoint, Endpoints
from agent_env.config.checks import is_reference
from agent_env.errors import NotFoundError

if TYPE_CHECKING:
    from agent_env.config.values import ModelConfig

DEFAULT: Final = "default"
"""What `[model]` itself is called."""
Resolve = Callable[[str], str]
"""Reference → value. Raises NotFoundError."""


def endpoints_of(model: ModelConfig, resolve: Resolve) -> Endpoints:
    """What `[model]` names. A key that can't be found is told by its endpoint, at the first call.

    Args:
        model: The table.
        resolve: Looks references up.
    """
    named = [_endpoint(name, table, resolve) for name, table in model.endpoints.items()]
    if model.base_url is not None:
        own = {"base_url": model.base_url, "api_key": model.api_key, "headers": model.headers}
        named.append(_endpoint(DEFAULT, own, resolve))
    return Endpoints(tuple(named), prices_of(model))


def prices_of(model: ModelConfig) -> Mapping[str, Price]:
    """What the models cost."""
    return {name: Price(price["input"], price["output"], price.get("cached_input")) for name, price in model.prices.items()}


def endpoint_for(base_url: str, key: str | None, configured: Endpoints) -> Endpoint:
    """An endpoint that somebody asked for by its address. A key of the configuration goes there only if it was configured for it.

    Args:
        base_url: The address.
        key: Given together with it.
        configured: What the configuration names.
    """
    known = next((each for each in configured.all if each.base_url.rstrip("/") == base_url.rstrip("/")), None)
    if known is not None:
        open_to_all = replace(known, dialects=(), models=())
        return replace(open_to_all, key=key, problem=None) if key else open_to_all
    if key:
        return Endpoint("overridden", base_url, key)
    return Endpoint("overridden", base_url, problem=f"no key was given for {base_url}, and keys go only where they were configured for")


def _endpoint(name: str, table: Mapping[str, Any], resolve: Resolve) -> Endpoint:
    found = _Found(resolve)
    headers = {header: found.value(str(value)) for header, value in (table.get("headers") or {}).items()}
    hidden = tuple(found.secrets)
    base, key = found.value(str(table["base_url"])), found.value(str(table.get("api_key") or ""))
    dialects, models = tuple(table.get("dialects") or ()), tuple(table.get("models") or ())
    return Endpoint(name, base, key, headers, dialects, models, hidden, "; ".join(found.missing) or None)


class _Found:
    def __init__(self, resolve: Resolve) -> None:
        self._resolve = resolve
        self.secrets: list[str] = []
        self.missing: list[str] = []

    def value(self, text: str) -> str:
        if not is_reference(text):
            return text
        try:
            value = self._resolve(text)
        except NotFoundError as error:
            self.missing.append(error.message)
            return ""
        self.secrets.append(value)
        return value
