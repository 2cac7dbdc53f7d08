"""Small tasks and bundles for the command-line tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

Steps = list[dict[str, Any]]

BOX = {"id": "box", "type": "deploy_sandbox", "sandbox_name": "box", "sandbox_mode": "vm"}


def shell(command: str, id: str = "check") -> dict[str, Any]:
    criterion = {"type": "bash_cmd_succeeds", "criterion": "it succeeds", "bash_cmd": command}
    return {"id": id, "type": "verify_sandbox", "sandbox_name": "box", "verifier_id": id, "criteria": [criterion]}


def graded(command: str) -> Steps:
    """Scores 1 when the command succeeds, else 0."""
    return [BOX, shell(command)]


PASSING = graded("true")
SCORED_ZERO = graded("false")
FAILING: Steps = [BOX, {"id": "work", "type": "run_code", "sandbox_name": "box", "script_artifact_id": "script"}, shell("true")]
SLOW: Steps = [BOX, {"id": "work", "type": "run_code", "sandbox_name": "box", "script_artifact_id": "sleep"}, shell("true")]
REVIEWED: Steps = [BOX, {"id": "ask", "type": "review", "label": "good enough?"}, shell("true")]


def bundle(root: Path, **tasks: Steps) -> Path:
    """A bundle with these tasks and the scripts that they name."""
    scripts = {"script": "import sys\ndef run(input):\n    sys.exit(3)\n", "sleep": "import time\ndef run(input):\n    time.sleep(60)\n"}
    for name, text in scripts.items():
        folder = root / "artifacts" / name
        folder.mkdir(parents=True)
        (folder / "run.py").write_text(text)
    (root / "tasks").mkdir()
    for name, steps in tasks.items():
        (root / "tasks" / f"{name}.json").write_text(json.dumps(steps))
    return root
