"""Steps that ask a model where none is configured, found before anything is built for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from agent_env.engine.plan import TaskPlan
from agent_env.engine.preflight_values import and_more, value_of
from agent_env.errors import Problem
from agent_env.steps.contract import UnreadableError

if TYPE_CHECKING:
    from agent_env.config.values import ModelConfig
    from agent_env.steps.contract import Step
    from agent_env.stores import Documents
    from agent_env.verifiers.rubrics_verifier import RubricsVerifier

Json = Any
AgentNeeds = Callable[[str], bool]
"""Whether the agent of that id, or that an alias means, says that it takes credentials of models; False of one that nobody knows."""
_AGENT_FIELD = "a2a_agent_id"
_ASKING = frozenset({"deploy_agent", "install_agent", "rubrics_verifier"})
_OWN_ENDINGS = ("_API_KEY", "_AUTH_TOKEN", "_BASE_URL")
"""Of variables by which an agent brings its own way to a model."""
_HINT = "set LITELLM_BASE_URL and LITELLM_API_KEY, or [model] base_url and api_key in the configuration"


def stored_needs(documents: Documents) -> AgentNeeds:
    """What stored agents say of themselves."""

    def needs(id: str) -> bool:
        found = documents.get("agents", id)
        return found is not None and says_so(found.body.get("metadata"))

    return needs


def says_so(metadata: Json) -> bool:
    """Whether an agent's metadata say that it takes credentials of models."""
    return isinstance(metadata, Mapping) and metadata.get("takes_credentials") is True


@dataclass(frozen=True)
class ModelsAsked:
    """Who will ask a model, against what is configured."""

    model: ModelConfig
    needs: AgentNeeds
    default_agent: str
    """The agent that is meant where nobody names one."""
    replayed: bool = False
    """Answers come from a recording, which needs no model."""

    def missing(self, plans: Mapping[str, TaskPlan], overrides: Mapping[str, Json]) -> list[Problem]:
        """What tasks will ask of models that nobody configured. Equal ones are told once, with their first place.

        An agent is taken to need a model when its document says so (`takes_credentials = true`); one that says nothing may need none.

        Args:
            plans: File or id, as messages will name it → task.
            overrides: `user_overrides` of the runs.
        """
        found: dict[str, list[tuple[str, str]]] = {}
        for source, plan in plans.items() if not self.replayed else ():
            for index, step_id in enumerate(plan.graph.order):
                step = plan.steps.get(step_id)
                with suppress(UnreadableError):
                    for what in self._asking(step, overrides) if step is not None and step.type_name in _ASKING else ():
                        found.setdefault(what, []).append((source, plan.path_of(index)))
        return [Problem(f"{what}{and_more(places, 'step')}", *places[0], hint=_HINT) for what, places in found.items()]

    def _asking(self, step: Step, overrides: Mapping[str, Json]) -> Iterator[str]:
        own = (overrides.get("step_params") or {}).get(step.id) or {}
        configured = bool(self.model.base_url or self.model.endpoints)
        match step.type_name:
            case "deploy_agent" | "install_agent":
                name = own.get(_AGENT_FIELD) or overrides.get(_AGENT_FIELD) or value_of(step, _AGENT_FIELD) or self.default_agent
                given = configured or overrides.get("litellm_base_url") or _brings_its_own(step) or _brings_its_own(own)
                if not given and self.needs(str(name)):
                    yield f"the agent {name!r} asks a model, and none is configured"
            case "rubrics_verifier":
                judge = cast("RubricsVerifier", step)
                by_agent = overrides.get("use_agent_judge", judge.use_agent_judge) is not False
                agent = own.get("judge_a2a_agent_id") or judge.judge_a2a_agent_id
                named = overrides.get("judge_model") or own.get("default_model") or judge.default_model
                if judge.agent_name is not None or (by_agent and agent):
                    return
                if not configured:
                    yield "the judge is a model, and none is configured"
                elif not (named or self.model.roles.get("judge") or self.model.default):
                    yield "no model is named for the judge"


def _brings_its_own(step: Step | Mapping[str, Json]) -> bool:
    def given(name: str) -> Json:
        return step.get(name) if isinstance(step, Mapping) else value_of(step, name)

    return bool(given("litellm_base_url")) or any(str(name).endswith(_OWN_ENDINGS) for name in given("env_vars") or {})
