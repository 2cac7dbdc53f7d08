"""Every command that the documentation shows is run, page by page, in the order in which a reader would type it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.environments.conftest import python_base
from tests.wheels import share_wheels

__all__ = ["python_base"]

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
ELSEWHERE = {
    "make test": "runs these tests: .ci/run calls it",
    "make lint": "a prerequisite of make test",
    "make demo": "tests/house/test_demo.py runs it on a clean clone",
}


BUILDING = re.compile(r"agent-env (bundle new .*--(env|agent)|env check \.|image build)")

Act = tuple[str, str]
"""A command to type (`$`, text), or a file to write (its path, its content)."""


def acts(page: Path) -> list[Act]:
    """What a reader does, in order: a block whose fence names a file is that file's content."""
    found: list[Act] = []
    for info, text in re.findall(r"^```(\S+(?: \S+)?)\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE):
        if info == "console":
            found += [("$", line[2:]) for line in text.splitlines() if line.startswith("$ ")]
        elif " " in info:
            found.append((info.split(" ")[1], text))
    return found


@pytest.mark.timeout(600)  # the first that needs an image has it built
@pytest.mark.parametrize("page", [p for p in PAGES if acts(p)], ids=lambda p: str(p.relative_to(ROOT)))
def test_every_command_of_the_page_works(page: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    tmp_path.chmod(0o755)
    home = tmp_path / "home"
    home.mkdir()
    if any(BUILDING.match(text) for what, text in acts(page) if what == "$"):
        request.getfixturevalue("python_base")
        share_wheels(home / ".local/state/agent-env")
    env = {
        **{k: v for k, v in os.environ.items() if not k.startswith(("AGENT_ENV_", "XDG_"))},
        "HOME": str(home),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    for what, text in acts(page):
        if what != "$":
            (home / what).write_text(text)
            continue
        if text in ELSEWHERE:
            continue
        folder = ROOT if text.startswith("make ") else home
        done = subprocess.run(["bash", "-c", text], cwd=folder, env=env, capture_output=True, timeout=580, check=False)
        assert done.returncode == 0, f"$ {text}\n{done.stdout.decode()}\n{done.stderr.decode()}"


def test_what_pages_import_and_run_is_there_after_make_demo() -> None:
    """These tests run with all that developers have; a reader has what `make demo` installs."""
    wanted = set[str]()
    for page in PAGES:
        known = {*sys.stdlib_module_names, *(Path(what).stem for what, _ in acts(page))}
        for what, text in acts(page):
            if what == "$" or what.endswith(".py"):
                found = re.findall(r"^(?:from|import) (\w+)|python3? -m (\w+)", text, re.MULTILINE)
                wanted |= {name.replace("_", "-") for names in found for name in names if name and name not in known}
    assert {"agent-env-sdk", "pytest"} <= wanted
    assert {*wanted, "uvicorn"} <= after_make_demo()  # what the SDK needs to serve


def after_make_demo() -> set[str]:
    """The packages that the lock file gives `make demo`, extras too."""
    locked = {package["name"]: package for package in tomllib.loads((ROOT / "uv.lock").read_text())["package"]}
    assert re.search(r"^setup:.*\n(?:\t.*\n)*\t.* --no-dev --group authoring$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    ours = locked["agent-env"]
    waiting, found = [{"name": "agent-env"}, *ours["dev-dependencies"]["authoring"]], set[str]()
    seen: set[tuple[str, str]] = set()
    while waiting:
        each = waiting.pop()
        found.add(each["name"])
        package = locked[each["name"]]
        for extra in ("", *each.get("extra", ())):
            if (each["name"], extra) not in seen:
                seen.add((each["name"], extra))
                waiting += package["optional-dependencies"][extra] if extra else package.get("dependencies", [])
    return found


def test_what_is_run_elsewhere_really_is() -> None:
    assert "make test" in (ROOT / ".ci/run").read_text()
    assert re.search(r"^test:.*\blint\b", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert "make demo" in (ROOT / "tests/house/test_demo.py").read_text()


def test_every_link_between_pages_leads_somewhere() -> None:
    for page in [*PAGES, ROOT / "AGENTS.md", ROOT / "SECURITY.md"]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
