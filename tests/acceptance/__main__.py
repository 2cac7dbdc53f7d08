"""Prints which test proves which id."""

from __future__ import annotations

import sys

from tests.acceptance.ids import REQUIRED, proofs


def main() -> int:
    table = proofs()
    for id in [*REQUIRED, *sorted(set(table) - set(REQUIRED))]:
        mark = " " if id in REQUIRED else "+"
        first, *more = table[id] or ["NO TEST"]
        print(f"{id:6}{mark} {first}")
        for proof in more:
            print(f"{'':7} {proof}")
    missing = [id for id in REQUIRED if not table[id]]
    print(f"\n{len(REQUIRED) - len(missing)} of {len(REQUIRED)} ids have a test ('+': not required here)")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
