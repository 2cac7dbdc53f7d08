"""The reference pages are made from the code and leave nothing out."""

from __future__ import annotations

from pathlib import Path

from agent_env.cli.command_table import COMMANDS
from agent_env.cli.reference import PAGES, configuration_page, reference, write_pages
from agent_env.config.keys import KEYS
from agent_env.config.said import SAID, every_key
from agent_env.documents.outcomes import Kind
from agent_env.steps.registry import BUILT


def test_page_of_the_command_line_has_every_command_and_every_json_shape() -> None:
    page = reference()
    assert not [name for name in COMMANDS if f"### `agent-env {name}`" not in page]
    assert "#### `agent-env runs teardown`" in page
    assert "--fail-under" in page
    assert '{"runs": [{"run_id", "task", "status"' in page


def test_pages_of_steps_and_outcomes_are_complete(tmp_path: Path) -> None:
    write_pages(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == set(PAGES)
    steps = (tmp_path / "steps.md").read_text()
    assert not [type for type in BUILT if f"## `{type}`" not in steps]
    assert "`sandbox_name`" in steps
    assert "FieldInfo" not in steps
    assert " at 0x" not in steps  # a type that nobody can read, and another page in each process
    assert "### BashCommandSucceeds" in steps
    outcomes = (tmp_path / "outcomes.md").read_text()
    assert not [kind for kind in Kind if f"`{kind}`" not in outcomes]


def test_page_of_the_configuration_has_every_key_with_what_it_is_for() -> None:
    page = configuration_page()
    assert [key for key in every_key() if f"| `{key}` |" not in page] == []
    assert {*SAID} == {*KEYS}
    assert "| `limits.payload_entries` | `100000` | `AGENT_ENV_LIMIT_PAYLOAD_ENTRIES` |  | Members of an archive. |" in page
