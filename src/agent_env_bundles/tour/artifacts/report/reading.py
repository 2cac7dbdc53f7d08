"""Reads the order list."""

import csv


def read_orders(path):
    """The orders, with what each costs in cents."""
    with path.open(newline="") as file:
        return [{"item": row["item"], "cents": round(int(row["count"]) * float(row["price"]) * 100)} for row in csv.DictReader(file)]
