"""Names that flow from step to step: who provides a sandbox, agent, environment, prompt, verifier or container, and who asks for it.

Only what steps *say* is looked at, so a name that nothing can provide is found before anything is deployed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import Protocol

from agent_env.documents.spelling import near
from agent_env.documents.updates import Json
from agent_env.engine.graph import Graph
from agent_env.errors import Problem
from agent_env.ids import NAME_HINT, name_problem
from agent_env.steps.contract import Step, UnreadableError
from agent_env.steps.targets import DEFAULT_AGENT, AgentTarget, EnvironmentTarget, SandboxTarget

SHOWN_NAMES, COMPARED_NAMES = 10, 300
"""How many names a hint lists, and among how many a near spelling is looked for."""
SANDBOX, AGENT, ENVIRONMENT, PROMPT, VERIFIER, CONTAINER = "sandbox", "agent", "environment", "prompt", "verifier", "container"
_KINDS = (SANDBOX, AGENT, ENVIRONMENT, PROMPT, VERIFIER, CONTAINER)

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

ON_ENVIRONMENTS = frozenset(
    {
        *("apply_server_config", "build_mcp_cli", "modify_env_tool_access", "register_env_triggers", "reset_env", "restore_env"),
        *("snapshot_env", "sync_env_clock"),
    }
)
"""Types that act on a deployed environment and provide no name."""

ON_AGENTS = frozenset({"add_skills", "peer_agents", "register_agent_triggers", "restore_agent_state", "snapshot_agent_state"})
"""Types that act on deployed agents and provide no name."""

KNOWN_TYPES = frozenset(
    {*PROVIDED, "load_artifact", "run_code", "collect_artifacts", "teardown_sandboxes", "review", *ON_ENVIRONMENTS, *ON_AGENTS}
)
"""Types whose fields are understood. A plug-in's own type may provide any name, so its presence turns problems into warnings."""

FORGIVING = frozenset({"teardown_sandboxes", "reset_env"})
"""Types that only warn about names that nobody provided."""

AT_ITS_NAMES = frozenset(
    {
        *("agent_prompt_response_verifier", "aggregate_verifiers", "collect_artifacts", "deploy_human_agent", "deploy_sandbox"),
        *("load_artifact", "review", "rubrics_verifier", "run_code", "run_container_unit_tests_verifier", "run_docker_container"),
        "verify_sandbox",
    }
)
"""Types that act at the names that they ask for or provide, and nowhere else."""

PRESET: Mapping[str, tuple[str, str]] = {
    SANDBOX: ("deployed_sandboxes", "sandbox_name"),
    AGENT: ("deployed_agents", "agent_name"),
    ENVIRONMENT: ("deployed_envs", "env_id"),
    PROMPT: ("prompt_responses", "prompt_id"),
}
"""Kind → the context's list of its records, and the field that names one."""


@dataclass(frozen=True, slots=True)
class Reference:
    """A step asks for a name."""

    kind: str
    name: str
    field: str


def provided(step: Step) -> tuple[str, str] | None:
    """The `(kind, name)` that a step provides once it has ended well. Raises `UnreadableError` where its name could not be read."""
    fields = type(step).model_fields
    return _provided(step.type_name or step.type, step.id, lambda field: getattr(step, field) if field in fields else None)


def _provided(type: str, step_id: str, value: Callable[[str], Json]) -> tuple[str, str] | None:
    rule = PROVIDED.get(type)
    if rule is None:
        return None
    kind, field = rule
    return kind, str(value(field) or (DEFAULT_AGENT if kind is AGENT else step_id))


def _understood(document: Mapping[str, Json]) -> bool:
    """Whether a step that could not be read still says what it provides."""
    type = str(document.get("type"))
    rule = PROVIDED.get(type)
    return type in KNOWN_TYPES and (rule is None or isinstance(document.get(rule[1]), str | None))


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


def may_use(step: Step, names: Collection[tuple[str, str]]) -> bool:
    """Whether a step may act at one of these names, given as `(kind, name)`. What a plug-in's step does is not known, so it may."""
    type_name = step.type_name or step.type
    if type_name in FORGIVING or not names:
        return False
    asked = {provided(step), *((reference.kind, reference.name) for reference in references(step))}
    return type_name not in AT_ITS_NAMES or not asked.isdisjoint(names)


@cache
def _asks(cls: type[Step]) -> tuple[bool, tuple[tuple[str, str], ...]]:
    """Whether a class of steps has a target, and which of its fields ask for names of which kind."""
    return hasattr(cls, "target") or "target" in cls.model_fields, tuple(item for item in ASKED.items() if item[0] in cls.model_fields)


def unprintable_names(step: Step, source: str, path: str) -> Iterator[Problem]:
    """Names that a step gives or asks for and that can't be names."""
    for field in _naming(type(step)):
        value = _field(step, field)
        for name in value if isinstance(value, list | tuple) else (value,):
            if isinstance(name, str) and not name.isprintable() and (wrong := name_problem(name)) is not None:
                yield Problem(f"{field} {name!r} {wrong}", source, f"{path}.{field}", NAME_HINT)


@cache
def _naming(cls: type[Step]) -> tuple[str, ...]:
    """Fields of a class of steps that hold names."""
    return tuple(sorted({*ASKED, *(field for _, field in PROVIDED.values())} & cls.model_fields.keys()))


class Offers:
    """Who provides which name, and from where in the graph that is certain.

    Sets of steps are bits by position, so that a question about ten thousand steps costs a few hundred machine words.
    """

    def __init__(
        self,
        steps: Mapping[str, Step],
        graph: Graph,
        preset: Mapping[str, Json],
        unsure: Collection[str],
        unread: Mapping[str, Mapping[str, Json]],
    ) -> None:
        self._graph = graph
        self._given = {kind: frozenset(_preset_names(preset, kind)) if preset else frozenset[str]() for kind in _KINDS}
        self._providers: dict[tuple[str, str], int] = {}
        self._of_kind: dict[str, int] = dict.fromkeys(_KINDS, 0)
        self._named: dict[int, str] = {}
        self._opaque = 0
        self._unsure = sum(1 << graph.position[step_id] for step_id in unsure)
        for position, step_id in enumerate(graph.order):
            step, bit = steps.get(step_id), 1 << position
            document = unread.get(step_id, {})
            if (step.type_name or step.type) not in KNOWN_TYPES if step is not None else not _understood(document):
                self._opaque |= bit
            try:
                offer = provided(step) if step is not None else _provided(str(document.get("type")), step_id, document.get)
            except UnreadableError:
                self._opaque |= bit
                continue
            if offer is not None:
                self._providers[offer] = self._providers.get(offer, 0) | bit
                self._of_kind[offer[0]] |= bit
                self._named[position] = offer[1]

    def certain(self, step_id: str, kind: str, name: str) -> bool:
        """Whether the name is provided whenever the step starts."""
        return name in self._given[kind] or bool(self._graph.ancestry(step_id) & self._providers.get((kind, name), 0))

    def opaque(self, step_id: str) -> bool:
        """Whether something before the step could not be read: it may have been meant to provide anything."""
        return bool(self._graph.ancestry(step_id) & self._opaque)

    def unsure(self, step_id: str) -> bool:
        """Whether it is not known what the step waits for, so that any earlier step may be meant."""
        return bool((self._graph.ancestry(step_id) | 1 << self._graph.position[step_id]) & self._unsure)

    def earlier(self, step_id: str, kind: str, name: str) -> str | None:
        """The first step that provides the name and stands before the step in the list, whether or not the step waits for it."""
        before = self._providers.get((kind, name), 0) & ((1 << self._graph.position[step_id]) - 1)
        return self._graph.order[(before & -before).bit_length() - 1] if before else None

    def listed_before(self, step_id: str, kind: str) -> dict[str, str]:
        """The first few names of the kind that steps before this one in the list provide, whether or not it waits for them → the step."""
        bits = self._of_kind[kind] & ((1 << self._graph.position[step_id]) - 1)
        return {self._named[position]: self._graph.order[position] for position in islice(_positions(bits), SHOWN_NAMES)}

    def known(self, step_id: str, kind: str) -> tuple[list[str], int]:
        """Names of the kind that are provided whenever the step starts, sorted, and how many there are.

        Of more than are compared only the first few are given: thousands of steps may each miss one of thousands of names.
        """
        bits = self._graph.ancestry(step_id) & self._of_kind[kind]
        count = bits.bit_count()
        few = islice(_positions(bits), SHOWN_NAMES if count > COMPARED_NAMES else None)
        names = sorted(self._given[kind].union(self._named[position] for position in few))
        return names, max(count, len(names))


class Named(Protocol):
    """A task whose steps ask for names."""

    @property
    def steps(self) -> Mapping[str, Step]:
        """Those that could be read."""
        ...

    @property
    def graph(self) -> Graph:
        """All of them."""
        ...

    def path_of(self, index: int) -> str:
        """The JSON path of a step, by its position."""
        ...


def name_problems(
    task: Named,
    preset: Mapping[str, Json],
    unsure: Collection[str] = (),
    unread: Mapping[str, Mapping[str, Json]] | None = None,
) -> Iterator[tuple[bool, Problem]]:
    """Names that nothing provides, as `(fatal, problem)`; not fatal ones are warnings.

    Args:
        task: Its steps and their graph.
        preset: The context that the run starts with.
        unsure: Steps whose place in the graph is not known, because what they depend on could not be read.
        unread: Steps that could not be read, as they are written, with the type that is meant: what they provide may still be plain.
    """
    offers = Offers(task.steps, task.graph, preset, unsure, unread or {})
    for index, step_id in enumerate(task.graph.order):
        step = task.steps.get(step_id)
        if step is None or (step.type_name or step.type) not in KNOWN_TYPES:
            continue
        for wanted in references(step):
            if not offers.certain(step_id, wanted.kind, wanted.name):
                if offers.unsure(step_id) and offers.earlier(step_id, wanted.kind, wanted.name) is not None:
                    continue
                fatal = not offers.opaque(step_id) and (step.type_name or step.type) not in FORGIVING
                yield fatal, _problem(task.path_of(index), step_id, wanted, offers)


def _problem(step_path: str, step_id: str, wanted: Reference, offers: Offers) -> Problem:
    path = f"{step_path}.{wanted.field}"
    unordered = offers.earlier(step_id, wanted.kind, wanted.name)
    if unordered is not None:
        return Problem(
            f"uses the {wanted.kind} {wanted.name!r}, but nothing makes this step wait for {unordered!r}, which provides it",
            path=path,
            hint=f"add {unordered!r} to depends_on",
        )
    names, count = offers.known(step_id, wanted.kind)
    meant = near(wanted.name, names) if count <= COMPARED_NAMES else None
    if meant:
        hint = f"did you mean {meant!r}?"
    elif names:
        more = f" and {count - SHOWN_NAMES} more" if count > SHOWN_NAMES else ""
        hint = f"provided before: {', '.join(map(repr, names[:SHOWN_NAMES]))}{more}"
    else:
        passed = [f"{step!r} provides {name!r}" for name, step in offers.listed_before(step_id, wanted.kind).items()]
        hint = "provided before: none" + (f"; this step doesn't wait for what is listed before it: {', '.join(passed)}" if passed else "")
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


def _positions(bits: int) -> Iterator[int]:
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest


def _field(step: Step, field: str) -> Json:
    return getattr(step, field, None)


def _preset_names(preset: Mapping[str, Json], kind: str) -> Iterator[str]:
    metadata = preset.get("metadata") or {}
    if kind is VERIFIER:
        yield from metadata.get("verifications") or {}
    elif kind is CONTAINER:
        yield from (record.get("container_name", "") for record in metadata.get("deployed_docker_containers") or ())
    else:
        collection, field = PRESET[kind]
        yield from (str(record.get(field, "")) for record in preset.get(collection) or ())
