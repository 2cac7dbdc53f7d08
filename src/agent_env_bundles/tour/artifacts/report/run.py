"""Adds up the orders. `run` writes the report, `recheck` reads it again."""

from pathlib import Path

from reading import read_orders


def run(given):
    """Writes one line an item, and returns the total in cents."""
    orders = read_orders(Path(given["args"]["orders"]))
    folder = Path(given["args"]["report"])
    folder.mkdir(parents=True, exist_ok=True)
    lines = [f"{order['item']}: {order['cents']}" for order in orders]
    total = sum(order["cents"] for order in orders)
    (folder / "report.txt").write_text("\n".join([*lines, f"total: {total}", ""]))
    print(f"{len(orders)} orders")
    return {"total_cents": total, "items": len(orders)}


async def recheck(given):
    """Compares the report with what `run` returned."""
    report = (Path(given["args"]["report"]) / "report.txt").read_text()
    expected = given["results"]["report"]["total_cents"]
    return {"agrees": f"total: {expected}\n" in report}
