"""Reads the order list."""

import csv
from pathlib import Path


def read_orders(path: Path) -> dict[str, int]:
    """What each item costs in all, in cents."""
    with path.open(newline="") as file:
        return {row["item"]: round(int(row["count"]) * float(row["price"]) * 100) for row in csv.DictReader(file)}
