"""Which class a step's type names. Only the modules of types that a task uses are imported.

The table knows every type of the field: those built here by module, checks for authors by the command that makes them. Plug-ins come
from the entry points `agent_env.task_steps` and from the configuration's `[task_steps] impls`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any

from agent_env.documents.spelling import near
from agent_env.errors import AgentEnvError, ConfigError, NotFoundError, Problem, ProblemsError, UnsupportedError
from agent_env.lazy import brought, loaded
from agent_env.steps.contract import Step
from agent_env.steps.reading import read_fields

ENTRY_POINTS = "agent_env.task_steps"

BUILT: Mapping[str, str] = {
    "add_skills": "agent_env.steps.add_skills:AddSkills",
    "agent_prompt_response_verifier": "agent_env.verifiers.agent_prompt_response_verifier:AgentPromptResponseVerifier",
    "aggregate_verifiers": "agent_env.verifiers.aggregate_verifiers:AggregateVerifiers",
    "apply_server_config": "agent_env.steps.apply_server_config:ApplyServerConfig",
    "build_mcp_cli": "agent_env.steps.build_mcp_cli:BuildMcpCli",
    "collect_artifacts": "agent_env.steps.collect_artifacts:CollectArtifacts",
    "deploy_agent": "agent_env.steps.deploy_agent:DeployAgent",
    "deploy_env": "agent_env.steps.deploy_env:DeployEnv",
    "deploy_human_agent": "agent_env.steps.deploy_human_agent:DeployHumanAgent",
    "deploy_sandbox": "agent_env.steps.deploy_sandbox:DeploySandbox",
    "env_outcome_verifier": "agent_env.verifiers.env_outcome_verifier:EnvOutcomeVerifier",
    "install_agent": "agent_env.steps.install_agent:InstallAgent",
    "load_artifact": "agent_env.steps.load_artifact:LoadArtifact",
    "modify_env_tool_access": "agent_env.steps.modify_env_tool_access:ModifyEnvToolAccess",
    "peer_agents": "agent_env.steps.peer_agents:PeerAgents",
    "prompt_agent": "agent_env.steps.prompt_agent:PromptAgent",
    "register_agent_triggers": "agent_env.steps.register_agent_triggers:RegisterAgentTriggers",
    "register_env_triggers": "agent_env.steps.register_env_triggers:RegisterEnvTriggers",
    "reset_env": "agent_env.steps.reset_env:ResetEnv",
    "restore_agent_state": "agent_env.steps.snapshot_agent_state:RestoreAgentState",
    "review": "agent_env.steps.review:Review",
    "rubrics_verifier": "agent_env.verifiers.rubrics_verifier:RubricsVerifier",
    "run_code": "agent_env.steps.run_code:RunCode",
    "run_container_unit_tests_verifier": "agent_env.verifiers.run_container_unit_tests_verifier:RunContainerUnitTestsVerifier",
    "run_docker_container": "agent_env.steps.run_docker_container:RunDockerContainer",
    "snapshot_agent_state": "agent_env.steps.snapshot_agent_state:SnapshotAgentState",
    "snapshot_env": "agent_env.steps.snapshot_env:SnapshotEnv",
    "sync_env_clock": "agent_env.steps.sync_env_clock:SyncEnvClock",
    "teardown_sandboxes": "agent_env.steps.teardown_sandboxes:TeardownSandboxes",
    "verify_sandbox": "agent_env.verifiers.verify_sandbox:VerifySandbox",
}
"""Type → `module:Class`."""

_CHECKS: Mapping[str, tuple[str, ...]] = {
    "agent-env env check": (
        "combine_universe_verdicts",
        "validation_gate_aggregator",
        "verify_env_card",
        "verify_env_core_protocol",
        "verify_mcp_env_assessment",
        "verify_mcp_tool_schema",
        "verify_spec_conformance",
        "verify_universe_load_export_roundtrip",
    ),
    "agent-env agent validate": (
        "verify_a2a_agent_card",
        "verify_a2a_agent_config_identity",
        "verify_a2a_agent_mcp",
        "verify_a2a_core_protocol",
        "verify_a2a_install",
        "verify_a2a_modalities",
        "verify_a2a_peer_agents",
        "verify_a2a_role",
        "verify_a2a_skill_config",
        "verify_a2a_snapshot",
        "verify_a2a_system_prompt",
        "verify_a2a_trajectory",
    ),
}
CHECKS: Mapping[str, str] = {type: command for command, types in _CHECKS.items() for type in types}
"""Type that checks an environment or agent for its author, which is no step here → the command that makes these checks."""
KNOWN_TYPES = frozenset(BUILT) | frozenset(CHECKS)


class Registry:
    """The step types of one process.

    Args:
        impls: `module:Class` entries of the configuration. They are imported at once: whoever names code to import has been trusted.
        entry_points: Names and loaders of installed plug-ins; None asks the installed distributions, on first need.

    Raises:
        ConfigError: An entry can't be imported, is no step class, has no type of its own, or claims a name that is taken.
    """

    def __init__(self, impls: object = (), *, entry_points: Iterable[EntryPoint] | None = None) -> None:
        self._classes: dict[str, type[Step]] = {}
        self._entry_points = None if entry_points is None else tuple(entry_points)
        self._plugins: Mapping[str, EntryPoint] | None = None
        self.notes: list[str] = []
        """Plug-ins that were skipped, and why."""
        self.certain = True
        """These are all types that were asked for; else one that nobody knows may be among the others."""
        for impl in _impl_list(impls):
            self._add_impl(impl)

    def step_class(self, type: str) -> type[Step]:
        """The class of a step type.

        Raises:
            UnsupportedError: The type is a check that a command makes, or its plug-in can't be used.
            NotFoundError: Nobody knows the type; the hint has a near spelling and the plug-ins that were skipped.
        """
        found = self._classes.get(type)
        if found is None:
            found = self._classes[type] = self._find(type)
        return found

    def types(self) -> list[str]:
        """Every type that can be run, sorted."""
        return sorted({*BUILT, *self._classes, *self._installed()})

    def meant(self, type: str) -> str | None:
        """The type of near spelling that was probably meant by one that nobody knows."""
        known = {*KNOWN_TYPES, *self._classes, *self._installed()}
        return near(type, known) if type not in known else None

    def _find(self, type: str) -> type[Step]:
        if type in BUILT:
            return _checked(_load(BUILT[type]), type)
        plugin = self._installed().get(type)
        if plugin is not None:
            return self._load_plugin(plugin)
        if type in CHECKS:
            raise UnsupportedError(
                f"step type {type!r} is an author's check, which is made by `{CHECKS[type]}` here, and by no step",
                hint="leave the step out",
            )
        meant = self.meant(type)
        hint = f"did you mean {meant!r}?" if meant else f"known: {', '.join(self.types())}"
        raise NotFoundError(f"unknown step type {type!r}", hint="; ".join((hint, *self.notes)))

    def _load_plugin(self, plugin: EntryPoint) -> type[Step]:
        what = f"the plug-in for step type {plugin.name!r} ({plugin.value})"
        try:
            return _checked(loaded(plugin.load, what), plugin.name)
        except ConfigError as error:
            raise UnsupportedError(f"{what} can't be used: {error}") from error

    def _installed(self) -> Mapping[str, EntryPoint]:
        """Plug-ins by type. A claim on a built-in's name, or by two, is skipped and noted."""
        if self._plugins is None:
            found = _installed_entry_points() if self._entry_points is None else self._entry_points
            claims: dict[str, list[EntryPoint]] = {}
            for plugin in found:
                claims.setdefault(plugin.name, []).append(plugin)
            for name, claimants in sorted(claims.items()):
                values = sorted({plugin.value for plugin in claimants})
                if name in BUILT:
                    self.notes.append(f"plug-in {values[0]} was skipped: {name!r} is built in")
                elif len(values) > 1:
                    self.notes.append(f"plug-ins {' and '.join(values)} were skipped: both claim {name!r}")
            self._plugins = {
                name: claimants[0]
                for name, claimants in claims.items()
                if name not in BUILT and len({plugin.value for plugin in claimants}) == 1
            }
        return self._plugins

    def _add_impl(self, impl: str) -> None:
        try:
            cls = _checked(_load(impl), None)
        except (ImportError, AttributeError, ValueError) as error:
            raise ConfigError(f"[task_steps] impls: {impl!r} can't be imported: {error}", hint="write 'module:Class'") from error
        except ConfigError as error:
            raise ConfigError(f"[task_steps] impls: {impl!r} can't be used: {error.message}", hint=error.hint) from error
        name = cls.type_name
        if name in BUILT:
            raise ConfigError(f"[task_steps] impls: {impl!r} claims the type {name!r}, which is built in")
        if name in self._classes and self._classes[name] is not cls:
            raise ConfigError(f"[task_steps] impls: {impl!r} claims the type {name!r}, which another entry has")
        if name in self._installed() and self._installed()[name].value != impl:
            self.notes.append(f"{impl} replaces plug-in {self._installed()[name].value} for {name!r}")
        self._classes[name] = cls


class EntryPoint:
    """An installed plug-in that may be loaded.

    Args:
        name: The step type that it claims.
        value: `module:Class`.
        load: Imports it.
    """

    def __init__(self, name: str, value: str, load: Callable[[], Any]) -> None:
        self.name = name
        self.value = value
        self.load = load


def read_step(
    data: Mapping[str, Any], *, source: str, path: str = "$", strict: bool = False, registry: Registry | None = None
) -> tuple[Step, list[Problem]]:
    """A typed step from its JSON.

    Args:
        data: The step as written.
        source: Its file or id, for the messages.
        path: Its JSON path in there.
        strict: Unknown keys are problems, not warnings.
        registry: The types; None is this process's.

    Returns:
        The step, and a warning for each unknown key that was kept.

    Raises:
        ProblemsError: Everything wrong with the step.
    """
    type_name = data.get("type")
    if not isinstance(type_name, str):
        raise ProblemsError([Problem("the step's type is missing" if type_name is None else "the step's type is text", source, path)])
    try:
        cls = (registry or current()).step_class(type_name)
    except AgentEnvError as error:
        certain = (registry or current()).certain
        raise ProblemsError([Problem(error.message, source, f"{path}.type", error.hint)] if certain else []) from error
    return read_fields(cls, data, source=source, path=path, strict=strict)


def parse_step(data: Mapping[str, Any], *, source: str, path: str = "$", strict: bool = False) -> Step:
    """`read_step` for whoever has no use for warnings."""
    return read_step(data, source=source, path=path, strict=strict)[0]


def step_class(type: str) -> type[Step]:
    """The class of a step type in this process; see `Registry.step_class`."""
    return current().step_class(type)


def meant_type(type: object) -> str | None:
    """The type that was probably meant by a misspelt one, in this process."""
    return current().meant(type) if isinstance(type, str) else None


_TYPE = type
_CURRENT: list[Registry] = []


def current() -> Registry:
    """This process's registry: what `use` installed, else the built-in types and installed plug-ins."""
    if not _CURRENT:
        _CURRENT.append(Registry())
    return _CURRENT[0]


def use(registry: Registry | None) -> None:
    """Installs the registry that the configuration asks for; None goes back to the default."""
    _CURRENT[:] = [] if registry is None else [registry]


def configure_unknown() -> None:
    """For a configuration whose types could not be read: a type that nobody knows here may be one of them, so it is no mistake."""
    registry = Registry()
    registry.certain = False
    use(registry)


def configure(impls: object) -> None:
    """Adds the configuration's `[task_steps] impls` to this process's types; nothing to add changes nothing. Raises as `Registry`."""
    if impls:
        use(Registry(impls))


def _impl_list(impls: object) -> Sequence[str]:
    if isinstance(impls, list | tuple) and all(isinstance(impl, str) for impl in impls):
        return impls
    raise ConfigError("[task_steps] impls is a list of texts such as 'module:Class'")


def _load(where: str) -> Any:
    module, _, name = where.partition(":")
    if not module or not name:
        raise ValueError("it names no class")
    return getattr(import_module(module), name)


def _checked(cls: Any, type: str | None) -> type[Step]:
    if not isinstance(cls, _TYPE) or not issubclass(cls, Step):
        raise ConfigError(f"{cls!r} is not a subclass of agent_env.steps.Step")
    if "type_name" not in cls.__dict__ or not cls.type_name:
        raise ConfigError(f"{cls.__module__}:{cls.__qualname__} has no step type of its own", hint='class MyStep(Step, type="my_step")')
    if type is not None and cls.type_name != type:
        raise ConfigError(f"{cls.__module__}:{cls.__qualname__} has the type {cls.type_name!r}, not {type!r}")
    return cls


def _installed_entry_points() -> Iterable[EntryPoint]:
    return [EntryPoint(found.name, found.value, found.load) for found in brought(ENTRY_POINTS)]
