"""The ids that this part of the product has to prove, and which test functions carry them in their names."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

TESTS = Path(__file__).parents[1]

PLACEMENT = """
A1 A2 A3 A4 A5 A6 A7 A8 A9 A10 A11 A12 A13 A14 A15 A16 A17 A18 A19 B1 B2 B3 B4 B5 B6 B7 B8 B9 B10 B11 B12 B13 B14 B15
C1 C2 C3 C4 C5 C6 C7 C8 C9 C10 C11 C12 C13 C14 D1 D2 D3 D4 D5 D6 D7 D8
"""
FAULTS = "F1 F2 F4 F5 F6 F8 F9 F11 F13 F15 F16 F18 F19 F20 F23 F24"
CASES = """
EX-01 EX-02 EX-04 EX-05 EX-07 EX-08 EX-10 EX-11 EX-13 EX-14 EX-16 EX-17 EX-19 US-01
FI-01 FI-03 FI-04 FI-06 FI-07 FI-09 FI-10 FI-12 FI-13 FI-15 PO-01 PO-02 PO-04 PO-05 PO-07 PO-08 IM-02 IM-03 IM-05 IM-06 IM-08 IM-09
TP-02 TP-03 TP-05 TP-06 TP-08 TP-09 TP-11 TP-12 RS-02 RS-03 RS-05 RS-06 SE-02 SE-03 SE-05 CC-01 CC-02 NP-01 NP-03 CK-01 CL-01 CL-02
GW-02 GW-03 GW-05 GW-06 GW-08 GW-09 GW-11 GW-12 GW-14 GW-15 GW-17
LC-02 LC-03 LC-05 LC-06 LC-08 LC-09 LC-11 LC-12 LC-14 LC-15
A2-01 A2-03 A2-04 A2-06 A2-07
"""
REQUIRED = tuple(f"{PLACEMENT} {FAULTS} {CASES}".split())

_ID = re.compile(r"(?:^|_)(ex|fi|us|gw|po|lc|im|tp|rs|cc|se|np|ck|cl|a2(?=_[0-9])|[abcdf])_?0*([1-9][0-9]?)(?=_|$)")
_PAIRED = re.compile(r"[A-Z][A-Z2]")


@dataclass(frozen=True)
class Proof:
    """A test function."""

    path: Path
    name: str

    def __str__(self) -> str:
        return f"{self.path.relative_to(TESTS.parent)}::{self.name}"


def ids_of(name: str) -> frozenset[str]:
    """The ids in a test's name: `test_ex01_d03_…`, `test_ex_01_…`, `test_a2_01_…` and `test_d3_…` are EX-01, A2-01 and D3."""
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
