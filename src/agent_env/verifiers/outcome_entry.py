"""Calls the `verify` of a task's script, in the place. Staged beside it; the framework never imports it."""

from __future__ import annotations

import importlib
import inspect
import sys
from typing import Any


async def run(given: dict[str, Any]) -> dict[str, Any]:
    """The rows, or what keeps the script from giving any."""
    if given["packages"]:
        sys.path.insert(0, given["packages"])
    function = getattr(importlib.import_module("verify"), "verify", None)
    if not callable(function):
        return {"problem": "the script has no function verify(mcp_url)"}
    named = inspect.signature(function).parameters
    more = {}
    if "run" in named:
        more["run"] = importlib.import_module("agent_env_run").read(given["run"])
    rows = function(given["mcp_url"], **more)
    if inspect.isawaitable(rows):
        rows = await rows
    return {"rows": list(rows) if isinstance(rows, (list, tuple)) else rows}
