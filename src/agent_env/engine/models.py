"""What one run may ask of models: its accounts and grants, the keeper told of its endpoints, and a broker of its own for judges.

Implements `broker.Models`.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from agent_env.broker.accounts import Account, Accounts, Grant
from agent_env.broker.asking import chat
from agent_env.broker.broker import Broker
from agent_env.broker.configured import DEFAULT, endpoint_for, endpoints_of, prices_of
from agent_env.broker.contract import KEY_VARIABLE, MODELS_PORT, Budget, ChatAnswer, ModelAccess, Role, Usage, grant_id
from agent_env.broker.endpoints import Endpoint, Endpoints
from agent_env.documents.updates import Json
from agent_env.engine.retelling import models_token
from agent_env.errors import AgentEnvError, ConfigError
from agent_env.places.endpoint import LOOPBACK
from agent_env.redaction import Redactor
from agent_env.stores.installation import InstallationKey
from agent_env.stores.packing import dump

if TYPE_CHECKING:
    from agent_env.engine.shared import Shared
    from agent_env.keeper.telling import ModelsTold
    from agent_env.stores.records import RunRow

TRANSCRIPTS: Final = "transcripts"
"""Below the state folder: a file for each run that asked a model. Not in the run's own folder, which is gone with its places."""
RECORD, REPLAY = "record", "replay"
"""Of a run's options: folders of recordings."""
_OVERRIDES: Final[Mapping[Role, tuple[str, str | None]]] = {
    "agent": ("litellm_api_key", "litellm_base_url"),
    "user": ("usersim_api_key", None),
    "judge": ("judge_litellm_api_key", None),
}
"""Whose `user_overrides` hold a key and an address (reference)."""


class RunModels:
    """The models of one run in this process.

    Args:
        shared: The run.
    """

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._settings = shared.model_settings
        self._accounts = Accounts(shared.stores.db)
        self._key = InstallationKey(shared.state_root)
        self._redactor = Redactor()
        self._known: dict[str, Endpoints] = {}
        self._brokers: list[Broker] = []
        self._told: list[ModelsTold] = []

    async def access(
        self, holder: str, *, role: Role = "agent", model: str | None = None, base_url: str | None = None, shared_loopback: bool = False
    ) -> ModelAccess | None:
        """What an agent is given; see `broker.Models`."""
        known = await asyncio.to_thread(self._accounts.find, grant_id(self._shared.run_id, holder, role))
        base_url = base_url or (known.base_url if known is not None else None)
        endpoints = self._endpoints(role, base_url)
        model = model or self._model(role)
        if not self._settings.broker and self._replay is None:
            return self._unbrokered(endpoints, model)
        if not endpoints.all and self._replay is None:
            return None
        token = await self._granted(holder, role, endpoints, base_url)
        name = self._name(endpoints)
        port = await self._keeper().tell({name: endpoints.plain()}, listen=shared_loopback)
        return ModelAccess(f"http://{LOOPBACK}:{port if shared_loopback and port else MODELS_PORT}", token, model)

    async def begin_turn(self, holder: str, turn: str) -> None:
        """The calls of that holder from now on belong to that turn."""
        await self._accounts.begin_turn(self._shared.run_id, holder, turn)

    async def usage(self, *, holder: str | None = None, turn: str | None = None, role: Role | None = None) -> Usage:
        """What was used so far, of everything that fits."""
        return await self._accounts.usage(self._shared.run_id, holder=holder, turn=turn, role=role)

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
        """Asks a model from this process; see `broker.Models`."""
        endpoints = self._endpoints(role, None)
        model = model or self._model(role)
        if not endpoints.all and self._replay is None:
            raise ConfigError("no model is configured", hint="set LITELLM_BASE_URL and LITELLM_API_KEY, or [model] in the configuration")
        if model is None:
            raise ConfigError(f"no model is named for the {role}", hint=f"set model.roles.{role} or model.default, or name one in the step")
        token = await self._granted(holder, role, endpoints)
        body = {**self._settings.params, **(params or {}), "model": model, "messages": [dict(each) for each in messages]}
        if response_format is not None:
            body["response_format"] = dict(response_format)
        answer = await chat(self._broker(), token, body, timeout_seconds=timeout_seconds, limits=self._shared.limits)
        price = endpoints.price(model)
        used = answer.usage
        cost = price.cost(used.input_tokens, used.output_tokens, used.cached_tokens) if price is not None else None
        return replace(answer, usage=replace(used, cost_usd=cost))

    async def aclose(self) -> None:
        """Lets go; the keeper goes on serving the run's agents."""
        while self._told:
            await self._told.pop().aclose()
        while self._brokers:
            await self._brokers.pop().aclose()

    # accounts

    async def _granted(self, holder: str, role: Role, endpoints: Endpoints, base_url: str | None = None) -> str:
        """Opens the holder's account, writes its leave down and gives its token: the same each time."""
        account, name = self._account(role), self._name(endpoints)
        self._known[name] = endpoints
        for secret in endpoints.secrets():
            self._shared.redactor.add(secret)
            self._redactor.add(secret)
        run_id = self._shared.run_id
        granted, token = models_token(self._shared.sandboxes.installation, run_id, holder, role)
        # Whoever talks with the agents of a run that is over does not change what that run may use.
        await self._accounts.open(account, change=self._row.finished_at is None)
        await self._accounts.grant(Grant(granted, holder, role, account, name, base_url))
        self._shared.redactor.add(token)
        return token

    def _account(self, role: Role) -> Account:
        run_id, model = self._shared.run_id, self._settings
        judges = role == "judge"
        return Account(
            f"{run_id}/judge" if judges else run_id,
            run_id,
            Budget.of(model.judge_budget if judges else {**model.budget, **(self._options.get("model_budget") or {})}),
            keep=bool(self._options.get("keep")),
            record=self._record,
            replay=self._replay,
            transcript=str(transcript_of(self._shared.state_root, run_id)),
        )

    @cached_property
    def _options(self) -> Mapping[str, Json]:
        options: Mapping[str, Json] = self._row.options
        return options

    @cached_property
    def _row(self) -> RunRow:
        return self._shared.stores.journal.run(self._shared.run_id)

    @cached_property
    def _record(self) -> str | None:
        folder = self._options.get(RECORD)
        return str(self._own_folder(Path(folder)) / self._which) if folder else None

    @cached_property
    def _replay(self) -> str | None:
        """Of the same attempt of the task; where fewer attempts were recorded, of the first."""
        folder = self._options.get(REPLAY)
        if not folder:
            return None
        own = self._own_folder(Path(folder))
        return str(own / self._which if (own / self._which).is_dir() else own / self._named(0))

    @property
    def _which(self) -> str:
        return self._named(self._row.attempt_index)

    def _named(self, attempt: int) -> str:
        """What a recording calls one attempt with these placeholders."""
        seed = dump(self._row.seed) if self._row.seed else ""
        return f"{attempt}-{hashlib.sha256(seed.encode()).hexdigest()[:8]}" if seed else str(attempt)

    def _own_folder(self, folder: Path) -> Path:
        return folder / (re.sub(r"[^A-Za-z0-9_.-]+", "-", self._shared.task_id.rpartition("/")[2]).strip("-.") or "task")

    # endpoints

    def _endpoints(self, role: Role, base_url: str | None) -> Endpoints:
        model = self._settings
        if self._replay is not None:
            return Endpoints((), prices_of(model))  # a replay needs neither an address nor a key
        configured = endpoints_of(model, self._resolved)
        key_name, address_name = _OVERRIDES[role]
        given = self._shared.overrides
        key = self._resolved(str(given[key_name])) if given.get(key_name) else None
        address = (given.get(address_name) if address_name else None) or base_url
        if address:
            return Endpoints((endpoint_for(str(address), key, configured),), configured.prices)
        if key:
            return Endpoints(tuple(_keyed(each, key) for each in configured.all), configured.prices)
        return configured

    def _resolved(self, reference: str) -> str:
        from agent_env.config.checks import is_reference

        return self._shared.stores.secrets.resolve(reference).reveal() if is_reference(reference) else reference

    def reference_of(self, value: str) -> str:
        """How a value that an agent is given of models is found again in another process; a literal is moved to the secret store."""
        from agent_env.config.checks import is_reference

        own = [self._settings.api_key, *(table.get("api_key") for table in self._settings.endpoints.values())]
        configured = (self._shared.overrides.get(_OVERRIDES["agent"][0]), *own, f"env:{KEY_VARIABLE}")
        for each in (str(each) for each in configured if each and is_reference(str(each))):
            with suppress(AgentEnvError):  # of another endpoint, whose key nobody needs now
                if self._resolved(each) == value:
                    return each
        return self._shared.stores.secrets.keep(value)

    def _model(self, role: Role) -> str | None:
        model = self._settings
        named = model.roles.get(role) or model.default
        return self._resolved(named) if named else None

    def _unbrokered(self, endpoints: Endpoints, model: str | None) -> ModelAccess | None:
        own = next((each for each in endpoints.all if each.name in {DEFAULT, "overridden"}), None) or next(iter(endpoints.all), None)
        if own is None:
            return None
        for secret in own.secrets():
            self._shared.redactor.add(secret)
        return ModelAccess(own.base_url, own.key, model, own.headers, brokered=False)

    def _name(self, endpoints: Endpoints) -> str:
        return endpoints.name_for(self._key.derive("models", "endpoints"))

    def _keeper(self) -> ModelsTold:
        if not self._told:
            from agent_env.keeper.telling import ModelsTold

            self._told.append(ModelsTold(self._shared.state_root, self._shared.stores.db.url, limits=self._shared.limits))
        return self._told[0]

    def _broker(self) -> Broker:
        if not self._brokers:
            made = Broker(self._accounts, self._key, self._known_as, redactor=self._redactor, limits=self._shared.limits)
            self._brokers.append(made)
        return self._brokers[0]

    async def _known_as(self, name: str) -> Endpoints | None:
        return self._known.get(name)


def transcript_of(state_root: Path, run_id: str) -> Path:
    """Where the calls of a run are written down. There is none before its first call."""
    return state_root / TRANSCRIPTS / f"{run_id}.jsonl"


def _keyed(endpoint: Endpoint, key: str) -> Endpoint:
    """Of the configuration's own endpoint; further ones keep the keys that they were configured with."""
    return replace(endpoint, key=key, problem=None) if endpoint.name == DEFAULT else endpoint
