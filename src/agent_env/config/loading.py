"""Reading files and variables, judging trust, merging."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from agent_env.config.keys import (
    KEYS,
    LIMIT_PREFIX,
    LIMIT_VARIABLE,
    LIMITS_LISTED,
    TABLES,
    flatten,
    is_unread,
    limit_key,
    looked_up,
    unread_problem,
    variable_value,
)
from agent_env.config.state import NOWHERE, STATE_VARIABLE, state_root
from agent_env.config.untrusted import gated_keys
from agent_env.config.values import DEFAULT_AGENT_ID, Config, ConfigFile, FileKind, ModelConfig, RunConfig, SandboxConfig, Source
from agent_env.defaults import DATABASE_SYNCHRONOUS, Limits
from agent_env.diagnostics import Diagnostics
from agent_env.documents.reading import parse_toml, read_file
from agent_env.documents.spelling import near
from agent_env.errors import ConfigError, Problem, ProblemsError
from agent_env.ids import home_folder
from agent_env.trust import TRUST_VARIABLE, Trust, refusal

CONFIG_VARIABLE = "AGENT_ENV_CONFIG"
PREFIX = "AGENT_ENV_"
OTHER_VARIABLES = (CONFIG_VARIABLE, STATE_VARIABLE, TRUST_VARIABLE, "AGENT_ENV_DEBUG", "AGENT_ENV_LOCAL_SANDBOX_DIR")
"""Variables of this process that are no key's."""
TREE_FILE = Path(".agentenv/config.toml")
TRUST_FILE = "trust.json"
DATABASE_FILE = "agent-env.db"


def load_config(
    cwd: Path, environ: Mapping[str, str], *, trust: Trust | None = None, untrusted: Literal["refuse", "skip"] = "refuse"
) -> Config:
    """The configuration that holds in a folder.

    Args:
        cwd: The working directory, where the walk up starts.
        environ: The process's variables.
        trust: Which folders the user trusts; by default what `agent-env trust` recorded in the user's state.
        untrusted: What happens to keys that an untrusted file may not set: an error, or they are left out and listed in `blocked`
            (for commands that must work before there is trust).

    Raises:
        ProblemsError: Everything wrong in files and variables, with file and key path.
        UntrustedError: A working tree's file asks for what only a trusted one may, and nothing else is wrong. As the first, it has
            what is sound as its `readable`.
        ConfigError: `AGENT_ENV_CONFIG` names no file, or there is no place for the state, and nothing else is wrong.
    """
    wrong = Diagnostics()
    root, notes = wrong.of(lambda: state_root(environ)) or (NOWHERE, ())
    trust = trust or Trust(root / TRUST_FILE, environ)
    candidates = wrong.of(lambda: _candidates(cwd, environ))
    files, loaded, problems, warnings = _read_files(candidates or ())
    given, found = _variables(environ, cwd)
    problems += found
    warnings += _idle_variables(given, environ)
    blocked: dict[str, str] = {}
    for file in files:
        if file.kind == "tree" and not trust.is_trusted(file.folder, file.digest):
            own = {key: value for other in files if other.kind == "user" for key, value in loaded[other.path].items()}
            gated = gated_keys(loaded[file.path], variables=given, own=own)
            if gated and untrusted == "refuse" and root != NOWHERE:  # what is trusted stands in the state
                wrong.refuse(refusal(file.path, file.folder, gated))
            blocked |= gated
            loaded[file.path] = {key: value for key, value in loaded[file.path].items() if key not in gated}
        for key, value in loaded[file.path].items():
            there, found = looked_up(key, value, environ, source=str(file.path), folder=file.folder)
            problems += found
            loaded[file.path] = {**loaded[file.path], key: there} if not found else _without(loaded[file.path], key)
    wrong.add(problems)
    values, origins = _merge([(Source("variable", name), {key: value}) for key, (name, value) in given.items()], files, loaded)
    unsound = frozenset(table for problem in problems for table in _tables_of(problem)) if problems else frozenset[str]()
    unsound |= {key.split(".", 1)[0] for key in blocked} if wrong else set()
    unsound |= set(TABLES) if candidates is None else {"state", "database"} if root == NOWHERE else set()
    config = _build(values, origins, root=root, files=files, warnings=tuple(warnings), notes=notes, blocked=blocked, unsound=unsound)
    wrong.tell(readable=config)
    return config


def _without(values: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {other: value for other, value in values.items() if other != key}


def _tables_of(problem: Problem) -> Collection[str]:
    """The tables that a problem is about; all of them where a whole file could not be read, or nobody can say which are meant."""
    keys = {rule.variable: key for key, rule in KEYS.items() if rule.variable}
    key = (problem.path or "").removeprefix("$.") or keys.get((problem.file or "").removeprefix("variable "), "")
    table = key.split(".", 1)[0]
    if (problem.file or "").startswith(f"variable {LIMIT_VARIABLE}"):
        return ("limits",)
    return (table,) if table in TABLES else TABLES


def user_trust(environ: Mapping[str, str]) -> Trust:
    """What this user trusts; remembered in the user's own state, which no file of a working tree can move."""
    return Trust(state_root(environ)[0] / TRUST_FILE, environ)


def find_tree_file(cwd: Path) -> Path | None:
    """The nearest `.agentenv/config.toml` above a folder."""
    folder = cwd.absolute()
    return next((parent / TREE_FILE for parent in (folder, *folder.parents) if os.path.lexists(parent / TREE_FILE)), None)


def digest_of(file: Path) -> str:
    """What trust in a configuration file is recorded for."""
    return hashlib.sha256(read_file(file)).hexdigest()


def _read_files(
    candidates: Iterable[tuple[Path, FileKind]],
) -> tuple[tuple[ConfigFile, ...], dict[Path, dict[str, Any]], list[Problem], list[Problem]]:
    files: list[ConfigFile] = []
    loaded: dict[Path, dict[str, Any]] = {}
    problems: list[Problem] = []
    warnings: list[Problem] = []
    for path, kind in candidates:
        try:
            data = read_file(path)
            table = parse_toml(data, source=str(path))
        except ProblemsError as error:
            problems += error.problems
            continue
        folder = path.parent.parent if kind == "tree" else path.parent
        file = ConfigFile(path, kind, hashlib.sha256(data).hexdigest(), folder)
        values, found, noticed = flatten(table, source=str(path), folder=folder)
        files.append(file)
        loaded[path] = values
        problems += found
        warnings += noticed
    return tuple(files), loaded, problems, warnings


def _candidates(cwd: Path, environ: Mapping[str, str]) -> list[tuple[Path, FileKind]]:
    named = environ.get(CONFIG_VARIABLE)
    if named:
        path = Path(cwd, named).absolute()
        if not path.exists():
            raise ConfigError(f"{CONFIG_VARIABLE} names {named!r}, which does not exist", concerns=str(path), hint="correct or unset it")
        return [(path, "named")]
    found: list[tuple[Path, FileKind]] = []
    tree = find_tree_file(cwd)
    if tree is not None:
        found.append((tree, "tree"))
    config_home = environ.get("XDG_CONFIG_HOME", "")
    home = home_folder(environ)
    base = Path(config_home) if config_home.startswith("/") else home / ".config" if home else None
    if base is not None and os.path.lexists(base / "agent-env/config.toml"):
        found.append((base / "agent-env/config.toml", "user"))
    return found


def _variables(environ: Mapping[str, str], cwd: Path) -> tuple[dict[str, tuple[str, Any]], list[Problem]]:
    """Dotted key → variable and value."""
    given: dict[str, tuple[str, Any]] = {}
    problems: list[Problem] = []
    for key, rule in KEYS.items():
        text = environ.get(rule.variable) if rule.variable else None
        if rule.variable and text:
            value, found = variable_value(key, rule, text, cwd)
            problems += found
            if not found:
                given[key] = (rule.variable, value)
    for name, text in environ.items():
        if name.startswith(LIMIT_VARIABLE):
            key = LIMIT_PREFIX + name[len(LIMIT_VARIABLE) :].lower()
            limit = limit_key(key)
            if limit is None:
                meant = near(key[len(LIMIT_PREFIX) :], Limits.names())
                hint = f"did you mean {LIMIT_VARIABLE}{meant.upper()}?" if meant else LIMITS_LISTED
                problems.append(Problem("names no limit", f"variable {name}", hint=hint))
            else:
                value, found = variable_value(key, limit, text, cwd, variable=name)
                problems += found
                if not found:
                    given[key] = (name, value)
    return given, problems


def _idle_variables(given: Mapping[str, tuple[str, Any]], environ: Mapping[str, str]) -> list[Problem]:
    """Variables that nothing reads: of keys that nothing reads, and those that are nearly spelt as one of ours."""
    found = [unread_problem(key, f"variable {name}", None) for key, (name, value) in given.items() if is_unread(key, value)]
    limits = (LIMIT_VARIABLE + name.upper() for name in Limits.names())
    known = {*OTHER_VARIABLES, *limits, *(rule.variable for rule in KEYS.values() if rule.variable)}
    for name in sorted(environ):
        if name.startswith(PREFIX) and name not in known and not name.startswith(LIMIT_VARIABLE):
            meant = near(name, sorted(variable for variable in known if variable.startswith(PREFIX)))
            if meant is not None:
                found.append(Problem("is read by nothing", f"variable {name}", hint=f"did you mean {meant}?"))
    return found


def _merge(
    variables: list[tuple[Source, dict[str, Any]]], files: tuple[ConfigFile, ...], loaded: Mapping[Path, Mapping[str, Any]]
) -> tuple[dict[str, Any], dict[str, tuple[Source, ...]]]:
    """Values of the first source that gives them, and every source of each."""
    values: dict[str, Any] = {}
    origins: dict[str, tuple[Source, ...]] = {}
    layers: list[tuple[Source, Mapping[str, Any]]] = [
        *variables,
        *((Source(file.kind, str(file.path)), loaded[file.path]) for file in files),
    ]
    for source, layer in layers:
        for key, value in layer.items():
            values.setdefault(key, value)
            origins[key] = (*origins.get(key, ()), source)
    return values, origins


def _build(values: dict[str, Any], origins: dict[str, tuple[Source, ...]], *, root: Path, **rest: Any) -> Config:
    root = Path(values.get("state.root", root))
    limits = {key[len(LIMIT_PREFIX) :]: value for key, value in values.items() if key.startswith(LIMIT_PREFIX)}
    model = {key: values[f"model.{key}"] for key in ModelConfig.__dataclass_fields__ if f"model.{key}" in values}
    model["endpoints"] = {key.split(".", 2)[2]: value for key, value in values.items() if key.startswith("model.endpoints.")}
    sandbox = {
        key: values[f"sandbox.{key}"] for key in ("default", "agent_default", "attribution", "unsafe_host") if f"sandbox.{key}" in values
    }
    providers = {key.split(".", 2)[2]: value for key, value in values.items() if key.startswith("sandbox.providers.")}
    return Config(
        state_root=root,
        limits=Limits(**limits),
        database_url=values.get("database.url") or f"sqlite:///{root / DATABASE_FILE}",
        synchronous=values.get("database.synchronous", DATABASE_SYNCHRONOUS),
        sandbox=SandboxConfig(**sandbox, providers=providers),
        model=ModelConfig(**model),
        run=RunConfig(values.get("run.concurrency"), values.get("run.quiesce")),
        default_agent_id=values.get("agents.default_a2a_agent_id", DEFAULT_AGENT_ID),
        human_a2a_url=values.get("conversations.default_human_a2a_url"),
        values=values,
        origins=origins,
        **rest,
    )
