"""`agent-env plugin`: what installed packages add, and whether it can be used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from agent_env.cli.frame import Group
from agent_env.cli.output import json_option, line, note, table, write_json
from agent_env.cli.session import configuration
from agent_env.errors import NotFoundError

if TYPE_CHECKING:
    from agent_env.cli.inventory import Contribution


@click.group(cls=Group)
def plugin() -> None:
    """Show and check what installed packages add: providers, steps, commands, bundles."""


@plugin.command("list")
@click.option("--no-load", is_flag=True, help="Read the packages' metadata alone and import nothing.")
@json_option
def list_(no_load: bool, as_json: bool) -> None:
    """List what installed packages add, with its status."""
    from agent_env.cli.inventory import FORMAT_VERSION, inventory, packages

    found = inventory(configuration(), load=not no_load)
    if as_json:
        write_json({"format_version": FORMAT_VERSION, "packages": packages(found)})
    elif found:
        _show(found)
    else:
        note("no installed package adds anything")


@plugin.command()
@click.argument("package")
@json_option
def show(package: str, as_json: bool) -> None:
    """Show what PACKAGE adds, what it needs, and what is wrong with it."""
    from agent_env.cli.inventory import FORMAT_VERSION, packages

    found = _of(package)
    metadata = _metadata(found[0].package)
    if as_json:
        write_json({"format_version": FORMAT_VERSION, **packages(found)[0], **metadata})
        return
    line(f"{found[0].package} {found[0].version}: {metadata['summary'] or 'no summary'}")
    for needed in metadata["requires"]:
        line(f"  needs {needed}")
    _show(found)


@plugin.command()
@click.argument("package", required=False)
@json_option
def check(package: str | None, as_json: bool) -> int:
    """Load everything that PACKAGE adds, or every package, and say what can't be used.

    Exit code 1 when something can't.
    """
    from agent_env.cli.inventory import FORMAT_VERSION, inventory, packages

    found = inventory(configuration()) if package is None else _of(package)
    wrong = [one for one in found if not one.sound]
    if as_json:
        write_json({"format_version": FORMAT_VERSION, "ok": not wrong, "packages": packages(found)})
    else:
        for one in wrong:
            line(f"{one.package} {one.version}: {one.group} {one.name} ({one.value}): {one.code}: {one.message}")
        line(f"{len(found)} found, {len(wrong)} can't be used" if wrong else f"{len(found)} found, all can be used")
    return 1 if wrong else 0


def _of(package: str) -> list[Contribution]:
    from agent_env.cli.inventory import inventory
    from agent_env.documents.spelling import near

    everything = inventory(configuration())
    found = [one for one in everything if _same(one.package, package)]
    if not found:
        known = sorted({one.package for one in everything})
        meant = near(package, known)
        hint = f"did you mean {meant!r}?" if meant else f"there are {', '.join(known)}" if known else "no installed package adds anything"
        raise NotFoundError(f"no installed package {package!r} adds anything", concerns=package, hint=hint)
    return found


def _same(one: str, other: str) -> bool:
    return one.lower().replace("_", "-").replace(".", "-") == other.lower().replace("_", "-").replace(".", "-")


def _metadata(package: str) -> dict[str, Any]:
    from importlib.metadata import distribution

    found = distribution(package)
    return {"summary": found.metadata["Summary"], "requires": list(found.requires or ())}


def _show(found: Sequence[Contribution]) -> None:
    table(
        ("PACKAGE", "VERSION", "GROUP", "NAME", "STATUS", "WHY"),
        [(one.package, one.version, one.group, one.name, one.status, one.message) for one in found],
    )
