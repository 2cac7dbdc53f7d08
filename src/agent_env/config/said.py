"""What each configuration key is for, in a sentence: for `config explain` and the reference page. Nothing else reads it."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Mapping
from functools import cache
from itertools import pairwise

from agent_env.config.keys import KEYS, LIMIT_PREFIX, UNREAD
from agent_env.defaults import Limits

UNUSED = "Accepted, and used by nothing in this version."

SAID: Mapping[str, str] = {
    **dict.fromkeys(UNREAD, UNUSED),
    "agents.default_a2a_agent_id": "The agent of a `deploy_agent` that names none.",
    "agents.docker_image": "The image of the container engine that an agent with `enable_docker` is given.",
    "conversations.default_human_a2a_url": "Where people answer whom `deploy_human_agent` names without an address.",
    "database.synchronous": "SQLite's word for how hard a commit is pushed to the disk: `NORMAL` or `FULL`.",
    "database.url": "The run database, `sqlite:///…` or `postgresql://…`; a SQLite file in the state folder when absent.",
    "envs.base_image": "What the gateway's and other images of our own are built from.",
    "envs.database_image": "The PostgreSQL of environments with a database.",
    "images.registries": "Credentials by registry: `username`, `password`.",
    "model.api_key": "The key of `model.base_url`.",
    "model.base_url": "The endpoint that is asked for what no other endpoint lists.",
    "model.broker": "Agents ask by way of the broker, with a token of the run; false hands them the endpoint and the key themselves.",
    "model.budget": "What the agents and simulated users of a run may use: `requests`, `tokens`, `cost_usd`, `concurrency`.",
    "model.default": "The model, where neither the command nor the task says another.",
    "model.endpoints.*": "A further endpoint, asked for what it lists: `base_url`, `api_key`, `headers`, `dialects`, `models`.",
    "model.headers": "Sent with each request to `model.base_url`.",
    "model.judge_budget": "What the judges of a run may use; as `model.budget`.",
    "model.params": "Added to the parameters of each prompt, such as a temperature.",
    "model.prices": "Model, or a pattern of names, to dollars for a million tokens: `input`, `output`, `cached_input`.",
    "model.roles": "Models of roles that need another one: `judge`, `user`.",
    "plugins.*": "The table of an installed plug-in, which reads it itself.",
    "run.concurrency": "Runs at once; by cores and memory when absent.",
    "run.quiesce": "What verifiers do with what earlier steps left running while they look: `freeze` or `kill`; left alone when absent.",
    "sandbox.agent_default": "The provider of agents' sandboxes, or several in the order in which they are tried.",
    "sandbox.container_privileges": "What tasks' containers are granted beyond an ordinary one: `privileged`, `capabilities`, `devices`, "
    "`volumes`, `host_network`.",
    "sandbox.default": "The provider of sandboxes, or several in the order in which they are tried.",
    "sandbox.providers.*": "A provider: `config` for its options, `impl` (`module:Class`) for one that no package brings.",
    "sandbox.unsafe_host": "Commands of machine sandboxes run on the bare host.",
    "state.root": "The folder of everything that is kept.",
    "task_steps.impls": "Step types that no package brings: a list of `module:Class`.",
}
"""Key → what it is for."""


def said_of(key: str) -> str:
    """What a key is for; every key has words."""
    if key.startswith(LIMIT_PREFIX):
        return limits_said().get(key.removeprefix(LIMIT_PREFIX), "")
    return SAID.get(key) or next((said for name, said in SAID.items() if name.endswith("*") and key.startswith(name[:-1])), "")


def every_key() -> list[str]:
    """All keys that a configuration may have; `*` stands for a free name."""
    return [*sorted(KEYS), *(f"{LIMIT_PREFIX}{name}" for name in Limits.names())]


@cache
def limits_said() -> Mapping[str, str]:
    """Limit → the words below it in its class."""
    (made,) = ast.parse(textwrap.dedent(inspect.getsource(Limits))).body
    body = made.body if isinstance(made, ast.ClassDef) else []
    found = {}
    for field, below in pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(below, ast.Expr):
            found[field.target.id] = " ".join(str(ast.literal_eval(below.value)).split())
    return found
