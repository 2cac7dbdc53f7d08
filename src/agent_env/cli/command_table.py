"""Which commands there are: name → where it is and one line of help, so that `--help` and completion import none of them."""

from __future__ import annotations

from typing import NamedTuple


class Entry(NamedTuple):
    """A command that is loaded when its name is used."""

    target: str
    """`module:attribute` of a `click.Command`."""
    help: str


_ROOM = "agent_env.cli.commands"

SECTIONS: dict[str, dict[str, Entry]] = {
    "Run": {
        "run": Entry(f"{_ROOM}.run:run", "Run a bundle's tasks to their scores (without BUNDLE: list what is installed)."),
        "resume": Entry(f"{_ROOM}.resume:resume", "Go on with an interrupted run at its first unfinished step."),
        "task": Entry(f"{_ROOM}.task:task", "Store, check and run single tasks."),
    },
    "Look back and into": {
        "runs": Entry(f"{_ROOM}.runs:runs", "List, show, follow, cancel, compare and remove runs."),
        "shell": Entry(f"{_ROOM}.places:shell", "Open a shell in a place of a run."),
        "exec": Entry(f"{_ROOM}.places:exec_", "Run one command in a place of a run."),
        "cp": Entry(f"{_ROOM}.copy:cp", "Copy files into or out of a place of a run."),
    },
    "Author": {
        "bundle": Entry(f"{_ROOM}.bundle:bundle", "Start, check and show bundles."),
        "artifact": Entry(f"{_ROOM}.artifact:artifact", "Store, fetch, list and remove artifacts."),
        "env": Entry(f"{_ROOM}.env:env", "Store, bring up, look into, check and take down environments."),
        "agent": Entry(f"{_ROOM}.agent:agent", "Store, deploy, talk with, check and take down agents."),
        "image": Entry(f"{_ROOM}.image:image", "Build, fetch, push, list and remove images."),
    },
    "This installation": {
        "config": Entry(f"{_ROOM}.config:config", "Show, explain and start the configuration."),
        "trust": Entry(f"{_ROOM}.trust:trust", "Say whose configuration may name keys, code and isolation."),
        "secret": Entry(f"{_ROOM}.secret:secret", "Keep values for `secret:KEY` references."),
        "model": Entry(f"{_ROOM}.model:model", "Check the models that agents and judges ask, and show what runs used of them."),
        "provider": Entry(f"{_ROOM}.provider:provider", "Show and check the providers of sandboxes."),
        "plugin": Entry(f"{_ROOM}.plugin:plugin", "Show and check what installed packages add."),
        "gc": Entry(f"{_ROOM}.gc:gc", "Remove what belongs to no live run."),
        "doctor": Entry(f"{_ROOM}.doctor:doctor", "Say what this machine can do, and what is missing."),
        "completion": Entry(f"{_ROOM}.completion:completion", "Print the completion script of a shell."),
    },
}

COMMANDS: dict[str, Entry] = {name: entry for section in SECTIONS.values() for name, entry in section.items()}

ALIASES: dict[str, str] = {"a2a-agent": "agent"}
"""Names that command lines of the reference use → ours. Not listed."""
