"""A new bundle to start from: small, and it runs to a score as it stands."""

from __future__ import annotations

import json
import re
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


def new_bundle(folder: Path | str, name: str | None = None) -> list[Path]:
    """Writes a bundle that runs.

    Args:
        folder: New or empty; its parent must exist.
        name: What it is called in `bundle.toml`; the folder's name in a legal spelling by default.

    Returns:
        The files, in the order in which a newcomer reads them.

    Raises:
        UsageError: The folder is in use, its parent is missing, or it can't be written.
        ProblemsError: The name can't be part of an id.
    """
    root = Path(folder).expanduser()
    target = Path.cwd() / root
    chosen = name if name is not None else legal_name(target.resolve().name)
    named_id_root(chosen, source="--name", path=None)
    try:
        if target.is_dir() and any(target.iterdir()):
            raise UsageError(f"{root} is not empty", concerns=str(root), hint="choose a new folder")
        if not target.parent.is_dir():
            raise UsageError(f"the folder {root.parent} does not exist", concerns=str(root), hint="create it first")
        return [_write(root / path, text) for path, text in _files(chosen, str(folder)).items()]
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
    shown = folder if folder.startswith(("/", ".", "~")) else f"./{folder}"
    return {
        "README.md": _README.format(name=name, folder=shown),
        "bundle.toml": _TOML.format(name=json.dumps(name, ensure_ascii=False)),
        "tasks/first.json": steps_text(_steps()),
        "artifacts/inputs/words.txt": _TEXT,
        "artifacts/inputs/count.sh": _SCRIPT,
    }


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
