"""What a registration comes to, given what is registered already: checked whole, and nothing of it holds before."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from agent_env_sdk.wire.names import DEFAULT_ROLE

from agent_env.gateway.catalogue import Catalogue
from agent_env.gateway.triggers.grammar import Executor, InstructionAction, Trigger, WebsiteWhen, read


@dataclass(frozen=True, slots=True)
class Watch:
    """Whose calls matter, and who may be asked to act: each can be said once."""

    roles: frozenset[str] | None = None
    """None until a registration said it, or left it at the default."""
    executors: Mapping[str | None, Executor] = field(default_factory=dict)
    """By name; None is the one without."""

    def after(self, body: Mapping[str, Any]) -> Watch:
        """With what a registration says.

        Raises:
            ValueError: It is not what can be said, or differs from what was.
        """
        watched = replace(self, roles=self._roles(body.get("watch_roles")))
        named = body.get("executors")
        if named is not None and (not isinstance(named, dict) or not all(named)):
            raise ValueError("executors must be an object keyed by non-empty names")
        given: dict[str | None, Any] = {} if body.get("executor") is None else {None: body["executor"]}
        executors = dict(self.executors)
        for name, raw in {**given, **(named or {})}.items():
            where = "executor" if name is None else f"executors.{name}"
            executor = read(Executor, raw, where)
            if executor.role in (watched.roles or ()):
                raise ValueError(f"{where}.role {executor.role!r} is watched: its own calls would set triggers off")
            if executors.get(name, executor) != executor:
                raise ValueError(f"{where} differs from the registered one; clear to change it")
            executors[name] = executor
        return replace(watched, executors=executors)

    def watches(self, role: str) -> bool:
        """Whether a call of this role sets triggers off that name no roles themselves."""
        return role in (self.roles or ()) and all(executor.role != role for executor in self.executors.values())

    def shown(self) -> dict[str, Any]:
        """As `/triggers/state` tells it."""
        return {
            "watch_roles": sorted(self.roles or ()),
            "executor_configured": None in self.executors,
            "executors": sorted(name for name in self.executors if name is not None),
        }

    def to_json(self) -> dict[str, Any]:
        """What the journal keeps."""
        executors = [[name, executor.model_dump(mode="json", exclude_unset=True)] for name, executor in self.executors.items()]
        return {"roles": sorted(self.roles or ()), "executors": executors}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Watch:
        """What `to_json` wrote."""
        return cls(frozenset(value["roles"]), {name: Executor.model_validate(raw) for name, raw in value["executors"]})

    def _roles(self, given: Any) -> frozenset[str]:
        if given is None:
            return self.roles if self.roles is not None else frozenset({DEFAULT_ROLE})
        if not isinstance(given, list) or not all(isinstance(role, str) and role for role in given):
            raise ValueError("watch_roles must be a list of non-empty strings")
        if self.roles is not None and frozenset(given) != self.roles:
            raise ValueError(f"watch_roles {sorted(given)} differ from the registered {sorted(self.roles)}; clear to change them")
        return frozenset(given)


def triggers(listed: Any, watch: Watch, websites: Sequence[str], catalogue: Catalogue) -> list[Trigger]:
    """The triggers of a registration.

    Raises:
        ValueError: One of them can't be.
    """
    if not isinstance(listed, list):
        raise ValueError("triggers must be a list")
    made: dict[str, Trigger] = {}
    for raw in listed:
        spec = _one(raw, watch, websites, catalogue)
        if spec.id in made:
            raise ValueError(f"trigger '{spec.id}': given twice")
        made[spec.id] = spec
    return list(made.values())


def _one(raw: Any, watch: Watch, websites: Sequence[str], catalogue: Catalogue) -> Trigger:
    if not isinstance(raw, dict):
        raise ValueError("every trigger must be an object")
    given = raw if raw.get("id") is not None else {**raw, "id": f"trg_{uuid.uuid4().hex[:12]}"}
    where = f"trigger '{given['id']}'"
    spec = read(Trigger, given, where)
    if isinstance(spec.when, WebsiteWhen) and spec.when.app not in websites:
        raise ValueError(f"{where}: when.app names no website {spec.when.app!r}; there are {sorted(websites)}")
    for place, action in enumerate(spec.actions):
        if not isinstance(action, InstructionAction):
            continue
        executor = watch.executors.get(action.executor)
        if executor is None:
            what = "no executor is registered" if action.executor is None else f"no executor is called {action.executor!r}"
            raise ValueError(f"{where}: actions[{place}]: {what}")
        if spec.barrier is not None and executor.hours is not None:
            raise ValueError(f"{where}: barrier: nothing may wait for an executor with working hours")
    if all(child.ready for child in catalogue.children):
        for place_name, tool in spec.tools():
            if catalogue.get(tool) is None:
                raise ValueError(f"{where}: {place_name} names unknown tool {tool!r}")
    return spec
