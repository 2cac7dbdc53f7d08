"""Adds up the orders. `run` writes the report, `recheck` reads it again."""

from pathlib import Path
from typing import Any

from reading import read_orders


def run(given: dict[str, Any]) -> dict[str, int]:
    """Writes one line an item, and returns the total in cents."""
    orders = read_orders(Path(given["args"]["orders"]))
    folder = Path(given["args"]["report"])
    folder.mkdir(parents=True, exist_ok=True)
    total = sum(orders.values())
    lines = [f"{item}: {cents}" for item, cents in orders.items()]
    (folder / "report.txt").write_text("\n".join([*lines, f"total: {total}", ""]))
    return {"total_cents": total, "items": len(orders)}


async def recheck(given: dict[str, Any]) -> dict[str, bool]:
    """Compares the report with what `run` returned."""
    report = (Path(given["args"]["report"]) / "report.txt").read_text()
    expected = given["results"]["report"]["total_cents"]
    return {"agrees": f"total: {expected}\n" in report}
