"""The run context's JSON: what `task run` writes and `--context-json` reads, also one that the reference wrote.

It stays plain data: records are kept as they were written, so nothing is lost on the way through.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agent_env.documents.reading import at, json_problems
from agent_env.errors import Problem, ProblemsError

Json = Any

REQUIRED_KEYS: Mapping[str, tuple[str, ...]] = {
    "deployed_envs": ("env_id", "env_version"),
    "deployed_agents": ("agent_name", "api_url"),
    "deployed_sandboxes": ("sandbox_name", "sandbox_id", "sandbox_mode"),
    "prompt_responses": ("prompt_id", "response"),
}
"""The context's lists, and what each of their records must have."""

METADATA_OBJECTS = frozenset({"attribution", "script_results", "seed", "structured_outputs", "user_overrides"})
"""Keys of the metadata that steps and teardown read, and that are objects."""
METADATA_RECORDS = frozenset(
    {"agent_trigger_state", "collected_artifacts", "env_snapshotted_universes", "env_trigger_state", "installed_clis", "verifications"}
)
"""Those that are objects, with an object or null under each name."""
METADATA_LISTS = frozenset(
    {"agent_snapshots", "agent_trigger_registrations", "deployed_docker_containers", "env_trigger_registrations", "failed_steps"}
    | {"human_agents", "loaded_file_artifact_universes", "retry_resets"}
)
"""Those that are lists of objects."""
METADATA_TEXTS = frozenset({"torn_down_sandbox_ids"})
"""Those that are lists of texts."""

IDENTITIES = frozenset({"agent_name", "env_id", "prompt_id", "sandbox_id", "sandbox_mode", "sandbox_name"})
"""Required keys of the lists' records that steps look them up by, and that are text."""

OVERRIDE_TEXTS = frozenset(
    {"a2a_agent_id", "agent_sandbox", "env_sandbox", "env_state_instance_id", "env_state_type", "gateway_env_id", "judge_litellm_api_key"}
    | {"judge_litellm_base_url", "judge_model", "litellm_api_key", "litellm_base_url", "sandbox", "service_db_env_id", "user_model"}
)
"""Keys of `user_overrides` that are text."""

SCALARS = ("agent_model", "default_agent_model", "agent_artifact_id", "agent_harness", "instance_id")

SECRET_KEYS = frozenset(
    {"litellm_api_key", "judge_litellm_api_key", "usersim_api_key", "remote_tokens", "cf_access_client_secret", "_heartbeat_fn"}
)
"""Never stored or exported, at any depth."""


def new_context(**metadata: Json) -> dict[str, Json]:
    """An empty context with these `metadata`."""
    context: dict[str, Json] = {name: [] for name in REQUIRED_KEYS}
    context["metadata"] = dict(metadata)
    context.update(dict.fromkeys(SCALARS))
    return context


def read_context(data: Json, *, source: str) -> dict[str, Json]:
    """A context from its JSON. Missing keys get their empty value, unknown ones are kept.

    Args:
        data: The parsed JSON.
        source: Its file, for the problems.

    Raises:
        ProblemsError: Everything wrong, with JSON paths.
    """
    if not isinstance(data, dict):
        raise ProblemsError([Problem("a run context is a JSON object", source, "$")])
    problems = list(json_problems(data, source=source))
    for name, required in REQUIRED_KEYS.items():
        problems += _list_problems(data.get(name), required, source, at("$", name))
    problems += _metadata_problems(data.get("metadata"), source, "$.metadata")
    problems += [
        Problem(f"{name} is text or null", source, at("$", name)) for name in SCALARS if not isinstance(data.get(name), str | None)
    ]
    if problems:
        raise ProblemsError(problems)
    given = {name: value for name, value in data.items() if value is not None or name not in (*REQUIRED_KEYS, "metadata")}
    return {**new_context(), **given}


def override_problems(overrides: Mapping[str, Json], source: str | None, path: str) -> list[Problem]:
    """What is wrong with the form of `user_overrides`, whatever task they are for."""
    problems = [
        Problem("is text or null", source, at(path, name))
        for name in sorted(OVERRIDE_TEXTS & overrides.keys())
        if not isinstance(overrides[name], str | None)
    ]
    params, where = overrides.get("step_params") or {}, at(path, "step_params")
    if not isinstance(params, Mapping):
        return [*problems, Problem("step_params maps step ids to their parameters", source, where)]
    return [
        *problems,
        *(Problem("is an object", source, at(where, str(id))) for id, own in params.items() if not isinstance(own, Mapping | None)),
    ]


def safe_context(context: Mapping[str, Json]) -> dict[str, Json]:
    """The context without secrets, as it may be stored or exported.

    A secret key stays only where its value is a reference (`env:…`, `secret:…`) without a default. Parts without secrets are shared with
    the original, not copied.
    """
    return {key: _stripped(value) for key, value in context.items() if _may_stay(key, value)}


def _metadata_problems(metadata: Json, source: str, path: str) -> list[Problem]:
    """What steps and teardown would stumble over; what they don't read may be anything."""
    if not isinstance(metadata, dict | None):
        return [Problem("metadata is an object", source, path)]
    return [problem for name, value in (metadata or {}).items() for problem in _entry_problems(name, value, source, at(path, name))]


def _entry_problems(name: str, value: Json, source: str, path: str) -> list[Problem]:
    if value is None:
        return []
    if name in METADATA_LISTS:
        return _list_problems(value, (), source, path)
    if name in METADATA_TEXTS:
        texts = isinstance(value, list) and all(isinstance(text, str) for text in value)
        return [] if texts else [Problem("is a list of texts", source, path)]
    if name not in METADATA_OBJECTS | METADATA_RECORDS:
        return []
    if not isinstance(value, dict):
        return [Problem("is an object", source, path)]
    if name == "user_overrides":
        return override_problems(value, source, path)
    inside = value.items() if name in METADATA_RECORDS else ()
    return [Problem("is an object", source, at(path, key)) for key, member in inside if not isinstance(member, dict | None)]


def _list_problems(records: Json, required: tuple[str, ...], source: str, path: str) -> list[Problem]:
    if records is None:
        return []
    if not isinstance(records, list):
        return [Problem("is a list of records", source, path)]
    problems = []
    for i, record in enumerate(records):
        where = at(path, i)
        if not isinstance(record, dict):
            problems.append(Problem("a record is an object", source, where))
            continue
        problems += [Problem(f"the record lacks {key!r}", source, where) for key in required if key not in record]
        named = (key for key in required if key in record and key in IDENTITIES)
        problems += [Problem("is text", source, at(where, key)) for key in named if not isinstance(record[key], str)]
    return problems


def _stripped(value: Json) -> Json:
    if isinstance(value, dict):
        made = {key: _stripped(member) for key, member in value.items() if _may_stay(key, member)}
        unchanged = len(made) == len(value) and all(made[key] is value[key] for key in made)
        return value if unchanged else made
    if isinstance(value, list | tuple):
        items = [_stripped(member) for member in value]
        return value if all(new is old for new, old in zip(items, value, strict=True)) else items
    return value


def _may_stay(key: str, value: Json) -> bool:
    if key not in SECRET_KEYS:
        return True
    return isinstance(value, str) and value.startswith(("env:", "secret:")) and "?" not in value
