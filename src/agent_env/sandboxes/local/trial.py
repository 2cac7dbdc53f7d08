"""Makes one real place, runs a command in it and removes it: the only proof that a machine can confine."""

from __future__ import annotations

import secrets
import tempfile
from pathlib import Path

from agent_env.clock import SystemClock
from agent_env.documents.network import NetworkMode, NetworkPolicy
from agent_env.errors import AgentEnvError
from agent_env.places import Command
from agent_env.sandboxes.confined.probe import Finding
from agent_env.sandboxes.contract import SandboxSpec
from agent_env.sandboxes.local.provider import LocalProvider


async def trial() -> Finding:
    """Tries it with folders of its own. Never raises for what the machine can't do: that is the finding."""
    clock = SystemClock()
    with tempfile.TemporaryDirectory(prefix="agent-env-trial-") as folder:
        work = {"AGENT_ENV_LOCAL_SANDBOX_DIR": str(Path(folder) / "work"), "HOME": folder}
        provider = LocalProvider(Path(folder) / "state", environ=work)
        spec = SandboxSpec(f"local-{secrets.token_hex(4)}", network=NetworkPolicy(mode=NetworkMode.NONE), processes=64)
        try:
            start = clock.monotonic()
            sandbox = await provider.create(spec)
            made = clock.monotonic() - start
            try:
                done = await (await sandbox.machine()).run(Command(["/bin/sh", "-c", "true"]))
            finally:
                await sandbox.aclose()
                await provider.destroy(spec.sandbox_id)
        except AgentEnvError as error:
            return Finding("a trial place", False, error.message, error.hint or "")
    return Finding("a trial place", done.ok, f"made in {made * 1000:.0f} ms, its command ended with {done.exit_code}")
