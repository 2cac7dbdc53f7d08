"""Writes down what happened, for whoever looks later."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def run(given: dict[str, Any]) -> str:
    """Where it was written."""
    target = Path("/app/artifact/evidence.json")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(given["results"], indent=2, sort_keys=True) + "\n", encoding="utf-8")
    return str(target)
