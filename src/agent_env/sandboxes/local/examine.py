"""What this machine can do for the sandboxes of `local`, for `doctor`."""

from __future__ import annotations

import asyncio
import os

from agent_env.defaults import DEFAULT_LIMITS
from agent_env.sandboxes.confined.probe import Finding, findings, survey
from agent_env.sandboxes.local.engines import NO_ENGINE_HINT, Engines


def examine() -> list[Finding]:
    """One line for each part."""
    engines = Engines(os.environ, DEFAULT_LIMITS)
    why = asyncio.run(engines.problem())
    return [*findings(survey(), Finding("container engine", why is None, why or engines.where, NO_ENGINE_HINT))]
