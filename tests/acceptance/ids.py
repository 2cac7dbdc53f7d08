"""The ids that this part of the product has to prove, and which test functions carry them in their names.

Left out, because nothing in this part could be asked:
    TP-03  time limits of a foreign task format: comes with the formats.
    EX-08, EX-09, EX-18, FI-02, FI-03, FI-13, FI-15, LC-03, LC-05, LC-06, LC-09, LC-11: need a container engine.
    D2: restarts a container engine.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

TESTS = Path(__file__).parents[1]

PLACEMENT = "A12 A13 A14 A16 A18 B6 B13 C10 C11 C12 C13 C14 D1 D3 D4 D5 D6 D7 D8"
FAULTS = "F6 F8 F9 F11 F15 F16 F18 F19"
CASES = """
EX-01 EX-02 EX-04 EX-05 EX-07 EX-10 EX-11 EX-13 EX-14 EX-16 EX-17 FI-01 FI-04 FI-06 FI-07 FI-09 FI-10 FI-12 US-01
TP-02 TP-05 TP-06 TP-08 TP-09 TP-11 TP-12 RS-02 RS-03 RS-05 RS-06 SE-02 SE-03 CK-01 CL-01 CL-02 LC-02 LC-08 LC-12 LC-14 LC-15
"""
REQUIRED = tuple(f"{PLACEMENT} {FAULTS} {CASES}".split())

_ID = re.compile(r"(?:^|_)(ex|fi|us|tp|rs|se|ck|cl|lc|[abcdf])_?0*([1-9][0-9]?)(?=_|$)")
_PAIRED = re.compile(r"[A-Z]{2}")


@dataclass(frozen=True)
class Proof:
    """A test function."""

    path: Path
    name: str

    def __str__(self) -> str:
        return f"{self.path.relative_to(TESTS.parent)}::{self.name}"


def ids_of(name: str) -> frozenset[str]:
    """The ids in a test's name: `test_ex01_d03_…`, `test_ex_01_…` and `test_d3_…` are EX-01 and D3."""
    found = ((kind.upper(), int(number)) for kind, number in _ID.findall(name.removeprefix("test_")))
    return frozenset(f"{kind}-{number:02}" if _PAIRED.fullmatch(kind) else f"{kind}{number}" for kind, number in found)


def proofs() -> dict[str, list[Proof]]:
    """Id → the tests that carry it; every required id has an entry."""
    table: dict[str, list[Proof]] = {id: [] for id in REQUIRED}
    for proof in _test_functions():
        for id in ids_of(proof.name):
            table.setdefault(id, []).append(proof)
    return table


def _test_functions() -> Iterator[Proof]:
    """What pytest collects by its naming rules, also tests that run only when they are asked for."""
    for path in sorted(TESTS.rglob("test_*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test"):
                yield Proof(path, node.name)
