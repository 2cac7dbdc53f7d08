"""A user whose tasks run in a sandbox that is a container, on any provider: each step in a process of its own."""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import Any

from tests.acceptance.conftest import Home
from tests.cli.conftest import Answer

AGENT = "solver"
TARGETS = {"as-sandbox": {"sandbox_name": "box"}, "as-agent": {"agent_name": AGENT}}
"""The two ways to say where: by the sandbox, and by the agent that is recorded in it."""


def probe(kind: str, path: str, **fields: Any) -> dict[str, Any]:
    """A criterion that looks at one path."""
    return {"type": kind, "criterion": path, "paths": [path], **fields}


class Session:
    """A sandbox that is a container, deployed by a first process; every call of `do` is another one that knows its context alone."""

    def __init__(self, home: Home, image: str, *, provider: str = "local", **fields: Any) -> None:
        self.home = home
        self._tasks = 0
        mode = {"sandbox_mode": "container", "sandbox_type": provider, "image": image, "port": 8000}
        answer = self._run([{"id": "box", "type": "deploy_sandbox", "sandbox_name": "box", **mode, **fields}])
        assert answer.code == 0, answer.all
        self._take()
        self.sandbox_id: str = self.record["sandbox_id"]
        self.container_id: str = self.record.get("container_id") or ""
        self.context["deployed_agents"] = [
            {"agent_name": AGENT, "api_url": None, "sandbox_id": self.sandbox_id, "sandbox_type": provider, "placement": "in_container"}
        ]

    @property
    def name(self) -> str:
        """Of its container, where an engine has it."""
        return f"agent-{self.sandbox_id}"

    @property
    def record(self) -> dict[str, Any]:
        return dict(self.context["deployed_sandboxes"][0])

    @property
    def metadata(self) -> dict[str, Any]:
        return dict(self.context["metadata"])

    def do(self, *steps: dict[str, Any], fails: bool = False) -> Answer:
        """Runs steps in a fresh process, in the same place. What they leave in the context is kept, unless they fail."""
        file = self.home.write(f"context-{self._tasks}.json", json.dumps(self.context))
        answer = self._run(list(steps), "--context-json", file)
        assert (answer.code != 0) is fails, answer.all
        self._take(keep_context=not fails)
        return answer

    def sh(self, text: str) -> str:
        """The output of shell text in the container, by a person's hand."""
        answer = self.home("exec", f"{self.run_id}:box", "--", "sh", "-c", text)
        assert answer.code == 0, answer.all
        return answer.out

    def scored(self, *commands: str, **fields: Any) -> dict[str, Any]:
        """Verifies by commands; returns the verification."""
        criteria = [{"type": "bash_cmd_succeeds", "criterion": command, "bash_cmd": command} for command in commands]
        self.do({"id": "check", "type": "verify_sandbox", "sandbox_name": "box", "base_dir": "/", "criteria": criteria, **fields})
        return dict(self.metadata["verifications"]["check"])

    def teardown(self) -> None:
        answer = self.home("runs", "teardown", self.run_id)
        assert answer.code == 0, answer.all

    def _run(self, steps: list[dict[str, Any]], *more: str | Path) -> Answer:
        self._tasks += 1
        task = f"t{self._tasks}-{secrets.token_hex(3)}"
        made = self.home("task", "create", self.home.write(f"{task}.json", json.dumps(steps)), "--id", task, "--skip-validation")
        assert made.code == 0, made.all
        return self.home("task", "run", "--id", task, *more, "--keep", "--json")

    def _take(self, *, keep_context: bool = True) -> None:
        self.run_id: str = self.home.runs()[0]["run_id"]  # also of one that could not begin
        if keep_context:
            self.context: dict[str, Any] = self.home.context(self.run_id)
