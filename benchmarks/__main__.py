"""`python -m benchmarks [NAME…]`: prints one table."""

from __future__ import annotations

import sys
from importlib import import_module

from rich.console import Console
from rich.table import Table

from benchmarks.measure import bare_python

MODULES = ("commands", "places", "containers", "rootfs", "history", "gateway", "models", "environments", "agents")


def main() -> None:
    """Runs the named benchmarks, or all, and prints as they come."""
    chosen = sys.argv[1:] or MODULES
    bare = bare_python()
    table = Table("figure", "value", "promised", "× bare python", "note", title=f"bare python -c pass: {bare * 1000:.1f} ms")
    for name in chosen:
        for figure in import_module(f"benchmarks.{name}").figures(bare):
            promise = f"≤ {figure.promise:g} {figure.unit}" if figure.promise is not None else ""
            ratio = f"{figure.ratio:.1f}" if figure.ratio is not None else ""
            value = f"{figure.value:.2f} {figure.unit}" if figure.value is not None else "left out"
            table.add_row(figure.what, value, promise, ratio, figure.note)
    Console(width=140).print(table)


main()
