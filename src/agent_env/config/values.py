"""What was configured, as frozen values, and how each is explained. None of them shows what it holds: keys and headers may be secrets.

Their classes have no `__eq__` and no generated `__repr__`, which also keeps importing them cheap.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from agent_env.config.keys import KEYS, LIMIT_PREFIX, limit_key
from agent_env.defaults import DATABASE_SYNCHRONOUS, DEFAULT_LIMITS, Limits
from agent_env.documents.spelling import near
from agent_env.errors import ConfigError, Problem
from agent_env.redaction import is_masked_config_key, mask_config

DEFAULT_AGENT_ID = "@local/agent-env/agents/mini"
"""Deployed where neither a step nor the configuration names an agent. The reference deploys its `claude-code`."""


class Source(NamedTuple):
    """Where a value came from."""

    kind: Literal["variable", "tree", "named", "user", "built-in"]
    name: str
    """The variable or file."""

    def __str__(self) -> str:
        return self.name


class ConfigFile(NamedTuple):
    """One file that was read."""

    path: Path
    kind: FileKind
    digest: str
    """sha256 of its bytes, which is what trust is recorded for."""
    folder: Path
    """The folder that it configures, and that relative paths in it start from."""


class Explained(NamedTuple):
    """One value as `config explain` shows it: masked, with what it hides."""

    key: str
    value: Any
    source: str
    shadowed: tuple[str, ...] = ()
    """Sources that gave the key too, and lost."""


FileKind = Literal["tree", "named", "user"]
"""A file of the configuration: of the working tree, named by a variable, or the user's own."""


@dataclass(frozen=True, eq=False, repr=False)
class SandboxConfig:
    """`[sandbox]`."""

    default: str = "local"
    """A provider's name, or several in the order in which they are tried, separated by commas."""
    agent_default: str | None = None
    """The same for agents; None means `default`."""
    attribution: Mapping[str, str] = field(default_factory=dict)
    providers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    unsafe_host: bool = False
    """Commands of machine sandboxes run on the bare host."""


@dataclass(frozen=True, eq=False, repr=False)
class ModelConfig:
    """`[model]`. Texts may be references; resolve them when used."""

    base_url: str | None = None
    api_key: str | None = None
    default: str | None = None
    roles: Mapping[str, str] = field(default_factory=dict)
    params: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    broker: bool = True
    """Agents ask by way of the broker, with a token of the run; False hands them the key itself."""
    budget: Mapping[str, Any] = field(default_factory=dict)
    """What the agents and simulated users of a run may use up: `requests`, `tokens`, `cost_usd`, `concurrency`."""
    judge_budget: Mapping[str, Any] = field(default_factory=dict)
    """The same for its judges."""
    prices: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Model, or a pattern of names → dollars for a million tokens: `input`, `output`, `cached_input`."""
    endpoints: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Further endpoints by name, asked before `base_url`: `base_url`, `api_key`, `headers`, `dialects`, `models`."""

    def __repr__(self) -> str:
        return f"ModelConfig(base_url={mask_config(self.base_url)!r}, default={self.default!r})"


@dataclass(frozen=True, eq=False, repr=False)
class RunConfig:
    """`[run]`."""

    concurrency: int | None = None
    """Runs at once; None derives it from cores and memory."""
    quiesce: str | None = None
    """What a verifier does with what earlier steps left running while it looks: None leaves it."""


@dataclass(frozen=True, eq=False, repr=False)
class Config:
    """Everything that was configured. Frozen."""

    state_root: Path
    limits: Limits = DEFAULT_LIMITS
    database_url: str = ""
    """A reference is resolved by whoever opens the stores."""
    synchronous: str = DATABASE_SYNCHRONOUS
    sandbox: SandboxConfig = field(default_factory=SandboxConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    run: RunConfig = field(default_factory=RunConfig)
    default_agent_id: str = DEFAULT_AGENT_ID
    human_a2a_url: str | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    """Every given value by dotted key (`stores.object`, `task_steps.impls`, `plugins.<name>` …)."""
    origins: Mapping[str, tuple[Source, ...]] = field(default_factory=dict)
    """Dotted key → its sources, the winner first."""
    files: tuple[ConfigFile, ...] = ()
    warnings: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()
    """What a person should know, such as a state folder that had to be elsewhere."""
    blocked: Mapping[str, str] = field(default_factory=dict)
    """Keys of an untrusted file that were left out, and why."""
    unsound: frozenset[str] = frozenset()
    """Tables of which something could not be read or may not be used: what depends on them is not known. Empty where nothing was raised."""

    def __repr__(self) -> str:
        return f"Config(state_root={str(self.state_root)!r}, files={[str(file.path) for file in self.files]})"

    def get(self, key: str, default: Any = None) -> Any:
        """A given value by dotted key."""
        return self.values.get(key, default)

    def given(self, key: str) -> bool:
        """Somebody said it: "not given" and "given as the default" are two things (TP-02)."""
        return key in self.values

    def section(self, name: str) -> dict[str, Any]:
        """All given values below a dotted name, without it."""
        prefix = f"{name}."
        return {key[len(prefix) :]: value for key, value in self.values.items() if key.startswith(prefix)}

    def explain(self, key: str) -> Explained:
        """One value and its sources, masked.

        Raises:
            ConfigError: No such key; the hint names a near one.
        """
        if key not in KEYS and key not in self.values and limit_key(key) is None:
            meant = near(key, [*KEYS, *self.values, *(LIMIT_PREFIX + name for name in Limits.names())])
            raise ConfigError(
                f"unknown configuration key {key!r}",
                hint=f"did you mean {meant!r}?" if meant else "agent-env config explain lists all of them",
            )
        sources = self.origins.get(key, ())
        value = self.values.get(key, _built_in(self, key))
        hidden = any(is_masked_config_key(part) for part in key.split("."))
        shown = mask_config(value, key if hidden else "")
        return Explained(key, shown, str(sources[0]) if sources else "built-in", tuple(map(str, sources[1:])))

    def describe(self) -> dict[str, Any]:
        """Everything for `config show`: given values masked, sources, files, warnings."""
        keys = sorted({*self.values, *(key for key, rule in KEYS.items() if rule.default is not None)})
        explained = [self.explain(key) for key in keys]
        return {
            "values": {entry.key: {"value": entry.value, "source": entry.source, "shadowed": list(entry.shadowed)} for entry in explained},
            "files": [{"path": str(file.path), "kind": file.kind} for file in self.files],
            "state_root": str(self.state_root),
            "database_url": mask_config(self.database_url),
            "warnings": [str(warning) for warning in self.warnings],
            "notes": list(self.notes),
            "blocked": dict(self.blocked),
        }


def _built_in(config: Config, key: str) -> Any:
    if key.startswith(LIMIT_PREFIX):
        return getattr(config.limits, key[len(LIMIT_PREFIX) :])
    rule = KEYS.get(key)
    return rule.default if rule is not None else None
