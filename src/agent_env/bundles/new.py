"""A new bundle to start from: small, and it runs to a score as it stands."""

from __future__ import annotations

import json
import os
import re
from importlib.resources import files as resources
from pathlib import Path

from agent_env.documents.updates import Json
from agent_env.errors import UsageError
from agent_env.ids import named_id_root

_SCRIPT = """\
#!/bin/sh
# Counts the words of each line of a file. The task loads this file and runs it.
while read -r line || [ -n "$line" ]; do
  set -- $line
  echo "$#"
done < "$1"
"""
_TEXT = "one\ntwo words\nand three words\n"
_README = """\
# {name}

A bundle of agent-env: tasks, and what they need.

    agent-env bundle check {folder}
    agent-env run {folder}

- `tasks/first.json` is a task: a list of steps that runs as a graph and ends in scores.
- `artifacts/inputs/` holds the files that the task loads. A folder of `artifacts/` is one artifact, named by the folder.
- `bundle.toml` names the bundle, so that its ids and its history do not depend on where the folder is.

Change a criterion in `tasks/first.json` and run it again to see it fail.
"""
_TOML = """\
name = {name}

# What tasks use where they say nothing themselves:
# [defaults]
# sandbox = "local"
"""


_ENVIRONMENT_README = """\
# {name}

A bundle of agent-env with an environment: a server of tools that agents call, and a task in which they do.

    agent-env bundle check {folder}
    agent-env run {folder}

- `envs/{env}/` is the environment: `server.py` has its tools, `Dockerfile` its image, and `test_server.py` tests it without an image.
- `tasks/{env}.json` deploys it, loads a seed, and looks at the outcome.
- `artifacts/seed/` is what the task loads before it starts; `artifacts/check_{env}/` says what must hold in the end.
- `bundle.toml` names the bundle, so that its ids and its history do not depend on where the folder is.

`agent-env env check {folder}:{env}` deploys the environment and says where it does not do what its card promises.
"""
_AGENT_README = """\
# {name}

A bundle of agent-env with an agent: a program that speaks A2A, and a task that asks it something and looks at its answer.

    agent-env bundle check {folder}
    agent-env run {folder}
    agent-env agent chat {folder}/agents/{agent}

- `agents/{agent}/` is the agent: `agent.py` does its turns, `Dockerfile` is its image, and `test_agent.py` tests it without an image.
- `tasks/{agent}.json` deploys it, asks it, and scores the answer. `agent-env run {folder} --agent NAME` asks another agent instead.
- `bundle.toml` names the bundle, so that its ids and its history do not depend on where the folder is.

`agent-env agent validate {folder}/agents/{agent}` deploys the agent and says where it does not do what its card promises.
"""
_CHECK = '''\
"""What must hold in the end: the function `verify` is told where the environment's tools are, and answers with rows."""

from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client


async def verify(mcp_url: str) -> list[dict[str, object]]:
    """One row for each thing; a row that is not met lowers the score."""
    async with streamable_http_client(mcp_url) as (receive, send, _), ClientSession(receive, send) as session:
        await session.initialize()
        read = await session.call_tool("{env}_read", {{"title": "welcome"}})
        written = await session.call_tool("{env}_write", {{"title": "welcome", "text": "again"}})
    said = "".join(getattr(part, "text", "") for part in read.content)
    return [
        {{"id": "the-seed-is-there", "result": said == "hello", "description": f"it said {{said!r}}"}},
        {{"id": "notes-are-not-overwritten", "result": bool(written.isError)}},
    ]
'''
_PART_NAME = re.compile(r"(?=.{1,40}\Z)[A-Za-z][A-Za-z0-9]*(?:[_-][A-Za-z0-9]+)*")


def new_bundle(folder: Path | str, name: str | None = None, *, env: str | None = None, agent: str | None = None) -> list[Path]:
    """Writes a bundle that runs.

    Args:
        folder: New or empty; its parent must exist.
        name: What it is called in `bundle.toml`; the folder's name in a legal spelling by default.
        env: The name of an environment to start with instead of a task on a machine.
        agent: The name of an agent to start with instead.

    Returns:
        The files, in the order in which a newcomer reads them.

    Raises:
        UsageError: The folder is in use, its parent is missing, it can't be written, or both an environment and an agent are named.
        ProblemsError: The name can't be part of an id.
    """
    root = Path(folder).expanduser()
    target = Path.cwd() / root
    chosen = name if name is not None else legal_name(Path(os.path.realpath(target)).name)
    named_id_root(chosen, source="--name", path=None)
    if env is not None and agent is not None:
        raise UsageError("a new bundle begins with an environment or with an agent", hint="make two, or add the other one's folder later")
    for what, part in (("environment", env), ("agent", agent)):
        if part is not None and not _PART_NAME.fullmatch(part):
            rule = "letters and digits, in parts with one hyphen or underscore between them, beginning with a letter; at most 40"
            raise UsageError(f"an {what} can't be called {part!r}", concerns=part, hint=rule)
    try:
        if target.is_dir() and any(target.iterdir()):
            raise UsageError(f"{root} is not empty", concerns=str(root), hint="choose a new folder")
        if not target.parent.is_dir():
            raise UsageError(f"the folder {root.parent} does not exist", concerns=str(root), hint="create it first")
        shown = str(folder) if str(folder).startswith(("/", ".", "~")) else f"./{folder}"
        if env is not None:
            made = _environment_files(chosen, shown, env)
        elif agent is not None:
            made = _agent_files(chosen, shown, agent)
        else:
            made = _files(chosen, shown)
        return [_write(root / path, text) for path, text in made.items()]
    except OSError as error:
        raise UsageError(f"{root} can't be written: {error.strerror}", concerns=str(root)) from error


def legal_name(text: str) -> str:
    """A text as a bundle's name: other characters become hyphens."""
    return re.sub(r"-{2,}", "-", re.sub(r"[^\w.-]+|__+", "-", text)).strip("-. _") or "bundle"


def _write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    if text.startswith("#!"):
        path.chmod(0o755)
    return path


def _files(name: str, folder: str) -> dict[str, str]:
    return {
        "README.md": _README.format(name=name, folder=folder),
        "bundle.toml": _TOML.format(name=json.dumps(name, ensure_ascii=False)),
        "tasks/first.json": steps_text(_steps()),
        "artifacts/inputs/words.txt": _TEXT,
        "artifacts/inputs/count.sh": _SCRIPT,
    }


def _environment_files(name: str, folder: str, env: str) -> dict[str, str]:
    """A bundle around the environment that the SDK's template is."""
    written = {
        "README.md": _ENVIRONMENT_README.format(name=name, folder=folder, env=env),
        "bundle.toml": f"name = {json.dumps(name, ensure_ascii=False)}\n",
        f"tasks/{env}.json": steps_text(_environment_steps(env)),
        "artifacts/seed/artifact.toml": 'type = "environment_universe"\n',
        f"artifacts/seed/{env}/seed.json": json.dumps({"notes": {"welcome": "hello"}}) + "\n",
        f"artifacts/check_{env}/verify.py": _CHECK.format(env=env),
    }
    return written | _from_template("environment", f"envs/{env}", env, f"{_class_name(env)}Server")


def _agent_files(name: str, folder: str, agent: str) -> dict[str, str]:
    """A bundle around the agent that the SDK's template is."""
    written = {
        "README.md": _AGENT_README.format(name=name, folder=folder, agent=agent),
        "bundle.toml": f"name = {json.dumps(name, ensure_ascii=False)}\n",
        f"tasks/{agent}.json": steps_text(_agent_steps(agent)),
    }
    return written | _from_template("agent", f"agents/{agent}", agent, f"{_class_name(agent)}Agent")


def _from_template(template: str, folder: str, name: str, class_name: str) -> dict[str, str]:
    """The files of a template, for one that has a name."""
    sources = sorted(resources("agent_env.bundles").joinpath("templates", template).iterdir(), key=lambda each: each.name)
    texts = {source.name.removesuffix(".in"): source.read_text(encoding="utf-8") for source in sources}
    return {f"{folder}/{file}": text.replace("__NAME__", name).replace("__CLASS__", class_name) for file, text in texts.items()}


def _class_name(name: str) -> str:
    return "".join(part[:1].upper() + part[1:] for part in re.split(r"[-_]", name))


def steps_text(steps: list[dict[str, Json]]) -> str:
    """A task's file: one step after the other, readable in a diff."""
    return json.dumps(steps, indent=2, ensure_ascii=False) + "\n"


def _steps() -> list[dict[str, Json]]:
    return [
        {"id": "box", "type": "deploy_sandbox", "sandbox_name": "box", "sandbox_mode": "vm"},
        {"id": "load", "type": "load_artifact", "sandbox_name": "box", "artifact_id": "inputs", "destination_path": "/app"},
        {
            "id": "check",
            "type": "verify_sandbox",
            "sandbox_name": "box",
            "verifier_id": "check",
            "criteria": [
                {"type": "probe_file_exists", "criterion": "the text is there", "paths": ["words.txt"]},
                {
                    "type": "bash_cmd_succeeds",
                    "criterion": "the last line has three words",
                    "bash_cmd": "sh count.sh words.txt | tail -n 1 | grep -qx 3",
                },
            ],
        },
    ]


def _environment_steps(env: str) -> list[dict[str, Json]]:
    return [
        {"id": "env", "type": "deploy_env", "env_id": env},
        {"id": "load", "type": "load_artifact", "env_id": env, "artifact_id": "seed"},
        {"id": "check", "type": "env_outcome_verifier", "env_id": env, "file_artifact_id": f"check_{env}", "verifier_id": "check"},
    ]


def _agent_steps(agent: str) -> list[dict[str, Json]]:
    return [
        {"id": "agent", "type": "deploy_agent", "a2a_agent_id": agent},
        {"id": "ask", "type": "prompt_agent", "prompt_id": "ask", "prompt": "How many words are these?"},
        {
            "id": "check",
            "type": "agent_prompt_response_verifier",
            "prompt_id": "ask",
            "verifier_id": "check",
            "criteria": [{"type": "response_contains", "needles": ["5"], "criterion": "the number is right"}],
        },
    ]
