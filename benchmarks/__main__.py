"""`python -m benchmarks [NAME…]`: prints one table."""

from __future__ import annotations

import argparse
from importlib import import_module

from rich.console import Console
from rich.table import Table

from benchmarks.measure import bare_python

MODULES = ("commands", "places", "containers", "rootfs", "history", "gateway", "models", "environments", "agents")


def known(name: str) -> str:
    """A benchmark's name.

    Raises:
        argparse.ArgumentTypeError: There is none of that name.
    """
    if name not in MODULES:
        raise argparse.ArgumentTypeError(f"there is no benchmark {name!r}; there are {', '.join(MODULES)}")
    return name


def main() -> None:
    """Runs the named benchmarks, or all, and prints as they come."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Prints the promised figures beside a bare interpreter's.")
    parser.add_argument("names", nargs="*", type=known, metavar="NAME", help=f"which of them: {', '.join(MODULES)} (default: all)")
    chosen = parser.parse_args().names or MODULES
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
