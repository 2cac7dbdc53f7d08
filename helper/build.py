"""Builds the helper for both architectures, bit for bit the same wherever it is built.

    python helper/build.py            writes src/agent_env/places/helper/bin/agentenv-helper-{x86_64,aarch64}, and what each was built
                                      from beside this file
    python helper/build.py --check    builds in a temporary folder and compares

The compiler is the pinned PyPI package `ziglang` (dependency group `helper`). Nothing of the building machine enters the result: sources
are named relative to their folder, there is no build id and nothing is stamped with a time.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

SOURCES = Path(__file__).resolve().parent
BINARIES = SOURCES.parent / "src/agent_env/places/helper/bin"
RECORD = SOURCES / "built.json"
"""Architecture → the digests of what its committed binary was built from, and of the binary."""
CACHE = SOURCES.parent / ".zig-cache"
ARCHITECTURES = ("x86_64", "aarch64")
FLAGS = (
    *("-std=gnu11", "-D_GNU_SOURCE=", "-static", "-s", "-g0", "-Wall", "-Wextra", "-Werror"),
    *("-Os", "-Xclang", "-Oz", "-fomit-frame-pointer"),  # zig takes `-Oz` for `-Os`, so the compiler behind it is told itself
    *("-fno-sanitize=all", "-fno-stack-protector", "-fno-unwind-tables", "-fno-asynchronous-unwind-tables", "-fno-ident"),
    *("-ffunction-sections", "-fdata-sections", "-Wl,--gc-sections", "-Wl,--build-id=none"),
)


def build(architecture: str, target: Path) -> None:
    """Compiles one binary.

    Raises:
        subprocess.CalledProcessError: The compiler refused; its messages are on standard error.
    """
    sources = sorted(path.name for path in SOURCES.glob("*.c"))
    extra = ["-DWITH_CONFINE"] if "confine.c" in sources else []
    compiler = [sys.executable, "-m", "ziglang", "cc", "-target", f"{architecture}-linux-musl", "-mcpu=baseline"]
    environment = {**os.environ, "ZIG_LOCAL_CACHE_DIR": str(CACHE), "ZIG_GLOBAL_CACHE_DIR": str(CACHE), "SOURCE_DATE_EPOCH": "0"}
    subprocess.run([*compiler, *FLAGS, *extra, "-o", str(target), *sources], cwd=SOURCES, env=environment, check=True)
    target.chmod(0o755)


def made_from() -> str:
    """The digest of all that decides what is built: the sources, the compiler and its flags."""
    found = hashlib.sha256(json.dumps([version("ziglang"), FLAGS]).encode())
    for path in sorted([*SOURCES.glob("*.c"), *SOURCES.glob("*.h")]):
        found.update(f"{path.name}\0{path.stat().st_size}\0".encode() + path.read_bytes())
    return found.hexdigest()


def facts(binary: Path) -> dict[str, str]:
    """What the record says of a binary that was built just now."""
    return {"sources": made_from(), "binary": hashlib.sha256(binary.read_bytes()).hexdigest()}


def name(architecture: str) -> str:
    """The file name of one architecture's binary."""
    return f"agentenv-helper-{architecture}"


def main() -> int:
    """Builds or compares; returns the process's exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="build in a temporary folder and compare with the committed binaries")
    parser.add_argument("--architecture", action="append", choices=ARCHITECTURES, help="only this one (may be repeated)")
    options = parser.parse_args()
    differs = []
    with tempfile.TemporaryDirectory() as folder:
        for architecture in options.architecture or ARCHITECTURES:
            fresh = Path(folder) / name(architecture)
            build(architecture, fresh)
            committed = BINARIES / name(architecture)
            if options.check and (not committed.exists() or committed.read_bytes() != fresh.read_bytes()):
                differs.append(committed.name)
            elif not options.check:
                BINARIES.mkdir(parents=True, exist_ok=True)
                staged = committed.with_suffix(".new")
                staged.write_bytes(fresh.read_bytes())
                staged.chmod(0o755)
                staged.replace(committed)
                record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
                RECORD.write_text(json.dumps({**record, architecture: facts(committed)}, indent=2, sort_keys=True) + "\n")
                sys.stdout.write(f"{committed.name}: {fresh.stat().st_size} bytes\n")
    if differs:
        sys.stderr.write(f"differs from its source: {', '.join(differs)} (run `make helper` and commit the result)\n")
    return 1 if differs else 0


if __name__ == "__main__":
    raise SystemExit(main())
