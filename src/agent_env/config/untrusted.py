"""What a configuration that lies in a working tree may say before its user has trusted the folder.

Deny by default: what stands here as allowed may be said, and everything else needs trust, also a key that is added tomorrow. Allowed
is what changes nothing but how the folder's own tasks are run: which agent and model they use, how long their work may take. What reaches
this machine, its network or its other runs, names code, images, endpoints, keys or places of data, or spends more than was granted is not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from agent_env.config.checks import is_reference
from agent_env.config.keys import KEYS, LIMIT_PREFIX, limit_key, pattern_of

_Allows = Callable[[Any], bool]


def _anything(_value: Any) -> bool:
    return True


def _only(value: Any) -> _Allows:
    return lambda said: said == value and type(said) is type(value)


SAMPLING = frozenset(
    {"temperature", "top_p", "top_k", "min_p", "seed", "stop", "frequency_penalty", "presence_penalty", "repetition_penalty"}
)
"""Parameters of a model call that change how an answer is drawn, and neither what it may use nor where it comes from."""


def _samples(value: Any) -> bool:
    return isinstance(value, Mapping) and value.keys() <= SAMPLING


ALLOWED: Mapping[str, _Allows] = {
    "agents.default_a2a_agent_id": _anything,
    "database.synchronous": _only("FULL"),
    "explorer.port": _anything,
    "model.broker": _only(True),
    "model.default": _anything,
    "model.params": _samples,
    "model.roles": _anything,
    "run.concurrency": _anything,
    "run.quiesce": _anything,
    "sandbox.attribution": _anything,
    "sandbox.container_privileges": _only([]),
    "sandbox.unsafe_host": _only(False),
}
"""Key → which of its values need no trust. A reference to a variable or a secret always does."""

ALLOWED_LIMITS = frozenset(
    {
        "agent_call_seconds",
        "agent_ready_seconds",
        "container_ready_seconds",
        "database_ready_seconds",
        "deploy_seconds",
        "download_seconds",
        "environment_add_seconds",
        "environment_call_seconds",
        "environment_card_seconds",
        "environment_deploy_seconds",
        "environment_load_seconds",
        "environment_ready_seconds",
        "environment_tools_seconds",
        "exec_seconds",
        "image_build_seconds",
        "image_pull_seconds",
        "judge_seconds",
        "model_seconds",
        "review_seconds",
        "run_code_seconds",
        "sandbox_cpu",
        "sandbox_disk_bytes",
        "sandbox_memory_bytes",
        "sandbox_ttl_seconds",
        "tool_call_seconds",
        "transfer_seconds",
        "verify_shell_seconds",
    }
)
"""Limits of the folder's own runs: how long their work may take, and what a task may ask for by itself anyway."""

_CODE, _STORES, _ENDPOINT = "names code to import", "redirects stores or state", "names an endpoint"
_SPENDS = "says how much of your models may be used up"
_PLACE = "chooses where sandboxes run, and so what isolates them and who pays"
_IMAGE = "names an image that is run for you"
LIMIT, UNKNOWN, REFERS = (
    "changes a limit that protects this machine or its other runs",
    "is not among what a working tree may say by itself",
    "uses one of your variables or secrets",
)

REASONS: Mapping[str, str] = {
    "agents.docker_image": _IMAGE,
    "artifacts.impls": _CODE,
    "artifacts.type_aliases": "says what types of artifacts mean",
    "conversations.default_human_a2a_url": _ENDPOINT,
    "database.synchronous": "weakens how runs are kept",
    "database.url": _STORES,
    "envs.base_image": _IMAGE,
    "envs.database_image": _IMAGE,
    "envs.impls": _CODE,
    "explorer.allowed_hosts": _ENDPOINT,
    "explorer.cors_origins": _ENDPOINT,
    "explorer.plugins": _CODE,
    "explorer.static_dir": "names files of this machine to serve",
    "images.registries": "names credentials of registries",
    "model.api_key": "pairs a key with an endpoint",
    "model.base_url": "would send your prompts and your model key to an endpoint of its choice",
    "model.broker": "would hand your model key to agents",
    "model.budget": _SPENDS,
    "model.endpoints.*": "would send your prompts and your model key to an endpoint of its choice",
    "model.headers": "says what is sent to your endpoint",
    "model.judge_budget": _SPENDS,
    "model.params": "adds more than sampling to your model calls",
    "model.prices": "says what counts against your budget of money",
    "plugins.*": "configures an installed plug-in",
    "runner": _STORES,
    "sandbox.agent_default": _PLACE,
    "sandbox.container_privileges": "grants tasks' containers this machine itself: its folders, devices, network or root",
    "sandbox.default": _PLACE,
    "sandbox.providers.*": "configures what isolates sandboxes and what of this machine's network they reach",
    "sandbox.unsafe_host": "switches isolation off",
    "state.providers.*": _STORES,
    "state.root": _STORES,
    "stores.document": _STORES,
    "stores.image": _STORES,
    "stores.object": _STORES,
    "stores.secret": _STORES,
    "task_steps.impls": _CODE,
}
"""Key → what it would do that only its user may decide; for the keys above, with the values that are not allowed."""


def gated_keys(values: Mapping[str, Any], *, variables: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, str]:
    """What a file may not say without trust: dotted key → why.

    What holds without the file as well needs no trust: it changes nothing.

    Args:
        values: The file's values by dotted key.
        variables: Those that variables of the process give, which win over every file.
        own: Those that the user's own files give.
    """
    asked = {key: value for key, value in values.items() if key not in variables and not _holds_anyway(key, value, own)}
    reasons = ((key, reason_for(key, value)) for key, value in asked.items())
    return {key: why for key, why in reasons if why is not None}


def reason_for(key: str, value: Any) -> str | None:
    """Why only a trusted file may give a key this value; None when any may."""
    if any(map(is_reference, _texts(value))):
        return REFERS
    if key.startswith(LIMIT_PREFIX):
        return None if key.removeprefix(LIMIT_PREFIX) in ALLOWED_LIMITS else LIMIT
    known = pattern_of(key)
    if known in ALLOWED and ALLOWED[known](value):
        return None
    return REASONS.get(known, UNKNOWN)


def allowed_values(key: str) -> str | None:
    """Which values need no trust: "any", "some", or None."""
    if key.startswith(LIMIT_PREFIX):
        return "any" if key.removeprefix(LIMIT_PREFIX) in ALLOWED_LIMITS else None
    if key not in ALLOWED:
        return None
    return "some" if key in REASONS else "any"


def _holds_anyway(key: str, value: Any, own: Mapping[str, Any]) -> bool:
    rule = KEYS.get(key) or limit_key(key)
    held = own.get(key, rule.default if rule is not None else None)
    return held is not None and type(held) is type(value) and bool(held == value)


def _texts(value: Any) -> Iterator[Any]:
    """Every text, however deep, names of tables included."""
    if isinstance(value, Mapping):
        yield from value
        for member in value.values():
            yield from _texts(member)
    elif isinstance(value, list):
        for member in value:
            yield from _texts(member)
    else:
        yield value
