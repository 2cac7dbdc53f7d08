"""`register_env_triggers`: what an environment does by itself, when something happens or time has come."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from agent_env_sdk.wire.names import DEFAULT_ROLE, TRIGGERS
from pydantic import Field

from agent_env.documents.updates import ExtendMetadata, Json, Update
from agent_env.environments.faults import EnvironmentFailedError
from agent_env.errors import DeadlineError, Problem, TaskError, UnsupportedError, UserError
from agent_env.steps.contract import EntityRef, OnResume, Plan, Run, StepResult, apart
from agent_env.steps.environment_step import ON_AN_ENVIRONMENT, EnvironmentStep, entry
from agent_env.steps.fields import OptionalName, Seconds, Texts
from agent_env.waiting import poll

if TYPE_CHECKING:
    from agent_env.documents.records import DeployedEnvironment
    from agent_env.environments.client import EnvironmentClient

_READ_SECONDS = 15.0
"""Limit of one look at the state (reference)."""
_FIRED, _LOST = "fired", ("failed", "cancelled")
_SHOWN_FAILURES = 6
_HEADERS = "executor_headers"
"""The feature of a gateway that can show executors who it is."""


@dataclass(frozen=True, slots=True)
class Registered(StepResult):
    """Which triggers were added."""

    record: Mapping[str, Json]

    def updates(self) -> tuple[Update, ...]:
        """Adds it to what was registered."""
        return (ExtendMetadata(("env_trigger_registrations",), [dict(self.record)]),)

    def summary(self) -> str:
        """Their ids."""
        return ", ".join(self.record["added"]) or "nothing new"


class RegisterEnvTriggers(EnvironmentStep, type="register_env_triggers"):
    """Register triggers with an environment's gateway, and where asked wait until some have fired."""

    on_resume: ClassVar[OnResume] = OnResume.REPEAT
    entity_refs: ClassVar[tuple[EntityRef, ...] | None] = ON_AN_ENVIRONMENT

    triggers: Annotated[tuple[dict[str, Any], ...], Field(min_length=1)]
    """Triggers: `id`, `when` (an action, a state, a time, a website's request) and `actions`."""
    watch_roles: Texts | None = None
    """Roles whose calls provoke; absent: `default`."""
    executor_agent_name: OptionalName = None
    """The deployed agent that carries out instructions (`nl` actions) without an executor of their own."""
    executor_timeout_seconds: Seconds = 120.0
    """Limit of one instruction."""
    executor_hours: dict[str, dict[str, Any]] | None = None
    """Agent → when it is at work: `start`, `end`, `days`, `time_zone` or `utc_offset`."""
    await_fired: Texts | None = None
    """Triggers that must have fired before the step ends."""
    await_timeout_seconds: Seconds = 120.0
    """How long that may take."""

    def problems(self, plan: Plan) -> Iterator[Problem]:
        """Awaited triggers must be among these, ids must be unique, executors must be deployed."""
        del plan
        return apart(self._listed_once(), self._registered_here())

    def _listed_once(self) -> Iterator[Problem]:
        ids = self._ids()
        for twice in sorted({id for id in ids if ids.count(id) > 1}):
            yield Problem(f"the trigger {twice!r} is listed twice", path=".triggers")

    def _registered_here(self) -> Iterator[Problem]:
        ids = self._ids()
        for id in self.await_fired or ():
            if id not in ids:
                yield Problem(f"awaits the trigger {id!r}, which this step does not register", path=".await_fired")

    def _ids(self) -> list[str]:
        return [str(trigger["id"]) for trigger in self.triggers if trigger.get("id")]

    async def execute(self, run: Run) -> Registered:
        """Registers all of them or none.

        Raises:
            UnsupportedError: The environment has no gateway, or one that lacks something that the triggers use.
            EnvironmentFailedError: The gateway refuses a trigger; none was added.
            TaskError: An awaited trigger failed, or did not fire in time.
        """
        live = await self.live(run)
        if not live.has_gateway:
            raise UnsupportedError(
                f"environment {self.env_id!r} has no gateway, and triggers are the gateway's",
                concerns=self.id,
                hint='deploy it with env_provider_type = "gateway"',
            )
        offered = await self._features_of(live.control)
        body = await self._body(run, live.record, with_headers=_HEADERS in offered)
        answer = await live.control.invoke(TRIGGERS, body, method="register")
        record = entry(
            self,
            added=list(answer.get("added") or ()),
            executor_agent_name=self.executor_agent_name,
            executor_agent_names=self._executors(),
        )
        if self.await_fired:
            record = {**record, "awaited": await self._awaited(run, live.control, self.await_fired)}
        return Registered(record)

    def _executors(self) -> list[str]:
        named = [str(action["executor"]) for action in self._actions() if action.get("executor")]
        return sorted({*named, *([self.executor_agent_name] if self.executor_agent_name else ())})

    def _actions(self) -> Iterator[Mapping[str, Json]]:
        for trigger in self.triggers:
            yield from (action for action in trigger.get("actions") or () if isinstance(action, dict))

    async def _body(self, run: Run, environment: DeployedEnvironment, *, with_headers: bool) -> dict[str, Json]:
        body: dict[str, Json] = {"triggers": [dict(trigger) for trigger in self.triggers]}
        if self.watch_roles is not None:
            body["watch_roles"] = list(self.watch_roles)
        if self.executor_agent_name:
            body["executor"] = await self._executor(run, environment, self.executor_agent_name, with_headers=with_headers)
        named = [name for name in self._executors() if name != self.executor_agent_name]
        if named:
            body["executors"] = {name: await self._executor(run, environment, name, with_headers=with_headers) for name in named}
        return body

    async def _executor(self, run: Run, environment: DeployedEnvironment, name: str, *, with_headers: bool) -> dict[str, Json]:
        agent = run.agent_record(name)
        if not agent.role or agent.role in (self.watch_roles or (DEFAULT_ROLE,)):
            raise UserError(
                f"agent {name!r} carries out instructions, so its own calls must not provoke any: its role is {agent.role!r}",
                concerns=self.id,
                hint="deploy it with a role that is not in watch_roles",
            )
        hours = (self.executor_hours or {}).get(name)
        access = await run.executor_access(environment, name)
        about = {"a2a_url": access.url, "role": agent.role, "timeout_seconds": self.executor_timeout_seconds}
        headers = {"headers": dict(access.headers)} if with_headers and access.headers else {}
        return {**about, **headers, **({"hours": hours} if hours else {})}

    async def _features_of(self, gateway: EnvironmentClient) -> set[str]:
        card = await gateway.card()
        extension = next((each for each in card.capabilities.extensions or () if each.uri == TRIGGERS), None)
        offered = set(((extension.params if extension else None) or {}).get("features") or ())
        missing = sorted(self._features() - offered)
        if missing:
            raise UnsupportedError(
                f"the gateway of environment {self.env_id!r} lacks {', '.join(missing)}, which the triggers use", concerns=self.id
            )
        return offered

    def _features(self) -> set[str]:
        whens = [when for trigger in self.triggers if isinstance(when := trigger.get("when"), dict)]
        hours = list((self.executor_hours or {}).values())
        used = {
            "named_executors": any(action.get("executor") for action in self._actions()),
            "provoking_roles": any(when.get("roles") for when in whens),
            "action_delay": any(action.get("delay") for action in self._actions()),
            "executor_hours": bool(hours),
            "executor_hours_time_zone": any("time_zone" in each for each in hours),
            "unless": any(when.get("unless") for when in whens),
            "website": any(when.get("type") == "website" for when in whens),
        }
        return {name for name, is_used in used.items() if is_used}

    async def _awaited(self, run: Run, gateway: EnvironmentClient, ids: Sequence[str]) -> dict[str, str]:
        seen: dict[str, str] = {}

        async def all_fired() -> bool | None:
            state = await gateway.invoke(TRIGGERS, {}, method="state", timeout_seconds=_READ_SECONDS)
            seen.update({str(each.get("id")): str(each.get("status")) for each in state.get("triggers") or () if each.get("id") in ids})
            lost = sorted(id for id in ids if seen.get(id) in _LOST)
            if lost:
                raise TaskError(f"awaited triggers did not fire: {_named(seen, lost)}{_failures(state)}", concerns=self.id)
            run.progress("waits for triggers", done=sum(seen.get(id) == _FIRED for id in ids), total=len(ids))
            return True if all(seen.get(id) == _FIRED for id in ids) else None

        try:
            await poll(all_fired, within_seconds=self.await_timeout_seconds, what="triggers to fire", limits=run.limits)
        except DeadlineError as error:
            message = f"awaited triggers did not fire within {self.await_timeout_seconds:g} s: {_named(seen, ids)}"
            raise TaskError(message, concerns=self.id) from error
        except EnvironmentFailedError as error:
            error.add_note(f"while waiting for triggers of environment {self.env_id!r}")
            raise
        return {id: seen[id] for id in ids}


def _named(seen: Mapping[str, str], ids: Sequence[str]) -> str:
    return ", ".join(f"{id} ({seen.get(id, 'not registered')})" for id in ids)


def _failures(state: Mapping[str, Json]) -> str:
    """What the gateway's log says of failures, the last few."""
    failed = [event for event in state.get("events") or () if "failed" in str(event.get("kind")) or event.get("kind") == "eval_error"]
    said = [f"{event.get('trigger_id')}: {event.get('error') or event.get('detail') or event.get('kind')}" for event in failed]
    return f" ({'; '.join(said[-_SHOWN_FAILURES:])})" if said else ""
