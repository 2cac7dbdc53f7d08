"""Nothing of the plug-in surface changes without somebody's saying so."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.providers.surface import ROOT, breaks, recorded, surface, version_of

HOW = """
If the break is meant: raise SURFACE_VERSION in src/agent_env/sandboxes/contract.py, tell what plug-ins must change in
docs/how-to/write-a-provider.md, and record the surface with `python -m tests.providers.surface`.
If it is not meant: keep the old name or signature beside the new one."""


def test_a_break_of_the_plug_in_surface_is_named_and_needs_a_new_version() -> None:
    version, before = recorded()
    now = surface()
    found = [] if version_of(now) > version else breaks(before, now)
    assert not found, "\n".join(["this breaks other people's providers:", *found, HOW])


def test_the_record_is_of_this_version_and_says_how_to_be_made_again() -> None:
    version, before = recorded()
    assert version_of(surface()) == version, f"the version was raised, so record the surface: {HOW}"
    assert "agent_env.sandboxes.contract.Provider.create" in before


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("sandboxes/contract.py", "    publish: bool = False\n", "", "Capabilities.publish is gone"),
        ("sandboxes/contract.py", "async def destroy(self, sandbox_id: str)", "async def destroy(self, name: str)", "Provider.destroy was"),
        (
            "sandboxes/contract.py",
            "    def list(self, labels",
            "    async def pause(self) -> None: ...\n\n    def list(self, labels",
            "Provider.pause is new in what plug-ins implement",
        ),
        (
            "places/place.py",
            "    timeout_seconds: float | None = None\n",
            "    timeout_seconds: float | None = 5.0\n",
            "Command.timeout_seconds was",
        ),
        ("errors.py", "class PlaceLostError(SandboxUnavailableError):", "class PlaceLostError(UserError):", "PlaceLostError was"),
    ],
    ids=["a field gone", "an argument renamed", "a method more to implement", "another default", "another parent"],
)
def test_each_kind_of_break_is_named(tmp_path: Path, file: str, old: str, new: str, said: str) -> None:
    source = tmp_path / "src"
    shutil.copytree(ROOT / "src/agent_env", source / "agent_env", ignore=shutil.ignore_patterns("__pycache__", "bin"))
    changed = source / "agent_env" / file
    text = changed.read_text()
    assert old in text
    changed.write_text(text.replace(old, new))
    found = breaks(surface(), surface(source))
    assert any(said in one for one in found), found


def test_what_is_added_for_plug_ins_to_use_breaks_nobody() -> None:
    now = surface()
    assert breaks({path: text for path, text in now.items() if not path.endswith("SandboxSpec.cpu")}, now) == []
