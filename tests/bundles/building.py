"""Bundles written by code, and memory to plan them against."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agent_env.artifacts import Artifacts
from agent_env.engine.options import Stores
from agent_env.stores import Database, Documents, Journal, Objects, Secrets

Content = str | bytes | list[Any] | dict[str, Any] | None
"""Text, bytes, a JSON value, or None for an empty folder. A text that starts with `->` is a link to the rest."""

BOX = {"id": "box", "type": "deploy_sandbox", "sandbox_name": "box", "sandbox_mode": "vm", "sandbox_type": "local"}
LOAD = {"id": "load", "type": "load_artifact", "sandbox_name": "box", "artifact_id": "inputs", "destination_path": "/app"}
CHECK = {
    "id": "check",
    "type": "verify_sandbox",
    "sandbox_name": "box",
    "verifier_id": "check",
    "criteria": [{"type": "probe_file_exists", "criterion": "there", "paths": ["one.txt"]}],
}
GOOD = {"tasks/good.json": [BOX, LOAD, CHECK], "artifacts/inputs/one.txt": "1\n", "artifacts/inputs/two.txt": "2\n"}


def write(root: Path, files: Mapping[str, Content]) -> Path:
    """Writes a folder."""
    root.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            path.mkdir(exist_ok=True)
        elif isinstance(content, bytes):
            path.write_bytes(content)
        elif isinstance(content, str) and content.startswith("->"):
            path.symlink_to(content[2:])
        else:
            path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return root


@contextmanager
def memory(root: Path) -> Iterator[Stores]:
    """Stores in a folder."""
    root.mkdir(parents=True, exist_ok=True)
    with Database.open(f"sqlite:///{root / 'runs.db'}") as db:
        documents, objects = Documents(db), Objects(root / "objects", db)
        journal, secrets = Journal(db, objects), Secrets(root / "secrets.json")
        yield Stores(db, documents, objects, journal, secrets, Artifacts(documents, objects))
