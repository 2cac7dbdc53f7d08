"""Names that flow from step to step: who provides a sandbox, agent, environment, prompt, verifier or container, and who asks for it.

Only what steps *say* is looked at, so a name that nothing can provide is found before anything is deployed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from agent_env.documents.spelling import near
from agent_env.documents.updates import Json
from agent_env.engine.graph import Graph
from agent_env.errors import Problem
from agent_env.steps.contract import Step
from agent_env.steps.targets import DEFAULT_AGENT, AgentTarget, EnvironmentTarget, SandboxTarget

SHOWN_NAMES, COMPARED_NAMES = 10, 300
"""How many names a hint lists, and among how many a near spelling is looked for."""
SANDBOX, AGENT, ENVIRONMENT, PROMPT, VERIFIER, CONTAINER = "sandbox", "agent", "environment", "prompt", "verifier", "container"

PROVIDED: Mapping[str, tuple[str, str]] = {
    "deploy_sandbox": (SANDBOX, "sandbox_name"),
    "deploy_agent": (AGENT, "agent_name"),
    "install_agent": (AGENT, "agent_name"),
    "deploy_human_agent": (AGENT, "agent_name"),
    "deploy_env": (ENVIRONMENT, "env_id"),
    "prompt_agent": (PROMPT, "prompt_id"),
    "run_docker_container": (CONTAINER, "container_name"),
    "verify_sandbox": (VERIFIER, "verifier_id"),
    "aggregate_verifiers": (VERIFIER, "verifier_id"),
    "env_outcome_verifier": (VERIFIER, "verifier_id"),
    "agent_prompt_response_verifier": (VERIFIER, "verifier_id"),
    "rubrics_verifier": (VERIFIER, "verifier_id"),
    "run_container_unit_tests_verifier": (VERIFIER, "verifier_id"),
}
"""Step type → the kind of name that it provides, and the field that says it."""

ASKED: Mapping[str, str] = {
    "sandbox_name": SANDBOX,
    "sandbox_names": SANDBOX,
    "agent_name": AGENT,
    "agent_names": AGENT,
    "env_id": ENVIRONMENT,
    "env_ids": ENVIRONMENT,
    "prompt_id": PROMPT,
    "verifier_ids": VERIFIER,
    "container_name": CONTAINER,
}
"""Field → the kind of name that it asks for, in a step that does not provide it."""

KNOWN_TYPES = frozenset({*PROVIDED, "load_artifact", "run_code", "collect_artifacts", "teardown_sandboxes", "review"})
"""Types whose fields are understood. A plug-in's own type may provide any name, so its presence turns problems into warnings."""

FORGIVING = frozenset({"teardown_sandboxes"})
"""Types that only warn about names that nobody provided."""

_PRESET: Mapping[str, tuple[str, str]] = {
    SANDBOX: ("deployed_sandboxes", "sandbox_name"),
    AGENT: ("deployed_agents", "agent_name"),
    ENVIRONMENT: ("deployed_envs", "env_id"),
    PROMPT: ("prompt_responses", "prompt_id"),
}


@dataclass(frozen=True, slots=True)
class Reference:
    """A step asks for a name."""

    kind: str
    name: str
    field: str


def provided(step: Step) -> tuple[str, str] | None:
    """The `(kind, name)` that a step provides once it has ended well."""
    rule = PROVIDED.get(step.type_name or step.type)
    if rule is None:
        return None
    kind, field = rule
    name = _field(step, field) or (DEFAULT_AGENT if kind is AGENT else step.id)
    return kind, str(name)


def references(step: Step) -> Iterator[Reference]:
    """The names that a step asks for."""
    type_name = step.type_name or step.type
    own = PROVIDED.get(type_name, ("", ""))[1]
    has_target, asked = _asks(type(step))
    target = getattr(step, "target", None) if has_target else None
    if isinstance(target, SandboxTarget | AgentTarget | EnvironmentTarget):
        yield from _of_target(target)
        skipped = {"sandbox_name", "agent_name", "env_id", "container_name", own}
    else:
        skipped = {own}
    for field, kind in asked:
        if field in skipped:
            continue
        value = _field(step, field)
        for name in value if isinstance(value, list | tuple) else (value,):
            if isinstance(name, str) and name.strip():
                yield Reference(kind, name, field)


@cache
def _asks(cls: type[Step]) -> tuple[bool, tuple[tuple[str, str], ...]]:
    """Whether a class of steps has a target, and which of its fields ask for names of which kind."""
    return hasattr(cls, "target") or "target" in cls.model_fields, tuple(item for item in ASKED.items() if item[0] in cls.model_fields)


def name_problems(steps: Mapping[str, Step], graph: Graph, preset: Mapping[str, Json]) -> Iterator[tuple[bool, Problem]]:
    """Names that nothing provides, as `(fatal, problem)`; not fatal ones are warnings."""
    kinds = (SANDBOX, AGENT, ENVIRONMENT, PROMPT, VERIFIER, CONTAINER)
    given: dict[str, set[str]] = {kind: set(_preset_names(preset, kind)) if preset else set() for kind in kinds}
    offers = {step_id: offer for step_id, step in steps.items() if (offer := provided(step))}
    for index, step_id in enumerate(graph.order):
        step = steps.get(step_id)
        if step is None or (step.type_name or step.type) not in KNOWN_TYPES:
            continue
        before = graph.before(step_id)
        # A step that could not be read may have been meant to provide it.
        opaque = any(other not in steps or (steps[other].type_name or steps[other].type) not in KNOWN_TYPES for other in before)
        for wanted in references(step):
            known = given[wanted.kind] | {offers[other][1] for other in before if offers.get(other, ("", ""))[0] == wanted.kind}
            if wanted.name not in known:
                fatal = not opaque and (step.type_name or step.type) not in FORGIVING
                yield fatal, _problem(index, wanted, known, offers, graph.order[:index])


def _problem(index: int, wanted: Reference, known: Iterable[str], offers: Mapping[str, tuple[str, str]], earlier: Sequence[str]) -> Problem:
    unordered = [other for other in earlier if offers.get(other) == (wanted.kind, wanted.name)]
    path = f"$[{index}].{wanted.field}"
    if unordered:
        return Problem(
            f"uses the {wanted.kind} {wanted.name!r}, but nothing makes this step wait for {unordered[0]!r}, which provides it",
            path=path,
            hint=f"add {unordered[0]!r} to depends_on",
        )
    names = sorted(known)
    # Bounded, for thousands of steps may each miss one of thousands of names.
    meant = near(wanted.name, names) if len(names) <= COMPARED_NAMES else None
    more = f" and {len(names) - SHOWN_NAMES} more" if len(names) > SHOWN_NAMES else ""
    hint = f"did you mean {meant!r}?" if meant else f"provided before: {', '.join(map(repr, names[:SHOWN_NAMES])) or 'none'}{more}"
    return Problem(f"uses the {wanted.kind} {wanted.name!r}, which no earlier step provides", path=path, hint=hint)


def _of_target(target: SandboxTarget | AgentTarget | EnvironmentTarget) -> Iterator[Reference]:
    match target:
        case SandboxTarget(sandbox_name, container_name):
            yield Reference(SANDBOX, sandbox_name, "sandbox_name")
            if container_name:
                yield Reference(CONTAINER, container_name, "container_name")
        case AgentTarget(agent_name):
            yield Reference(AGENT, agent_name, "agent_name")
        case EnvironmentTarget(env_id):
            yield Reference(ENVIRONMENT, env_id, "env_id")


def _field(step: Step, field: str) -> Json:
    return getattr(step, field, None)


def _preset_names(preset: Mapping[str, Json], kind: str) -> Iterator[str]:
    metadata = preset.get("metadata") or {}
    if kind is VERIFIER:
        yield from metadata.get("verifications") or {}
    elif kind is CONTAINER:
        yield from (record.get("container_name", "") for record in metadata.get("deployed_docker_containers") or ())
    else:
        collection, field = _PRESET[kind]
        yield from (str(record.get(field, "")) for record in preset.get(collection) or ())
