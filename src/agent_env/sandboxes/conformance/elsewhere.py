"""Another process that works with the same provider: `python -m agent_env.sandboxes.conformance.elsewhere`, told on standard input.

What it is told holds tokens, so it comes by no argument and no variable.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from agent_env.errors import AgentEnvError
from agent_env.places import Command
from agent_env.sandboxes.contract import Provider, SandboxSpec
from agent_env.sandboxes.registry import provider


def made(recipe: dict[str, Any]) -> Provider:
    """The provider as this process makes it."""
    return provider(recipe["name"], state_root=Path(recipe["state_root"]), options=recipe.get("options"), impl=recipe.get("impl"))


async def act(told: dict[str, Any]) -> dict[str, Any]:
    """Does what was asked, and says how it ended."""
    there = made(told["recipe"])
    try:
        return await _acted(there, told)
    finally:
        await there.aclose()


async def _acted(there: Provider, told: dict[str, Any]) -> dict[str, Any]:
    spec = SandboxSpec(**told["spec"])
    try:
        if told["do"] == "create":
            sandbox = await there.create(spec)
        else:
            sandbox = await there.attach(spec.sandbox_id, epoch=told["epoch"], token=spec.token)
        container = told.get("container")
        place = await sandbox.container(container) if container else await sandbox.machine()
        done = await place.run(Command(told["argv"]))
    except AgentEnvError as error:
        return {"error": error.code, "message": str(error)}
    await sandbox.aclose()
    return {"id": place.id, "kind": place.kind.value, "stdout": done.stdout.decode(errors="replace"), "exit_code": done.exit_code}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(act(json.load(sys.stdin)))) + "\n")
