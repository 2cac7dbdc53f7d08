"""What this machine can do for the sandboxes of `local`, for `doctor`."""

from __future__ import annotations

import asyncio
import os

from agent_env.defaults import DEFAULT_LIMITS
from agent_env.sandboxes.confined.probe import Finding, findings, survey
from agent_env.sandboxes.local.engines import Engines


def examine() -> list[Finding]:
    """One line for each part."""
    engines = Engines(os.environ, DEFAULT_LIMITS)
    problem, name = asyncio.run(engines.problem()), "container engine"
    engine = Finding(name, True, engines.where) if problem is None else Finding(name, False, problem.why, problem.hint)
    return [*findings(survey(), engine)]
