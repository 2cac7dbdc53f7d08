"""Environments and agents as commands name what is to be stored or deployed: folders, entries of bundles, aliases, stored ids."""

from __future__ import annotations

import asyncio
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_env.cli.output import line, note, write_json

if TYPE_CHECKING:
    from agent_env.bundles import Written
    from agent_env.bundles.model import BundleKind
    from agent_env.bundles.planned import BundlePlan
    from agent_env.engine.options import Stores


def planned(kind: BundleKind, what: str, stores: Stores, id: str | None = None) -> tuple[BundlePlan, str]:
    """What has to be written for a folder, an installed bundle's entry or an alias, and the entry's id.

    Raises:
        NotFoundError: It is none of these.
        ProblemsError: Everything wrong with it.
    """
    from agent_env.bundles.single_plans import plan_named, plan_single, unknown_name
    from agent_env.cli.session import or_run

    if is_folder(what):
        return plan_single(kind, Path(what).expanduser(), stores, id=id)
    found = plan_named(kind, what, stores)
    if found is None:
        raise or_run(unknown_name(kind, what, stores), what, stores)
    return found


def is_folder(what: str) -> bool:
    """Whether a path is meant."""
    if Path(what).expanduser().is_dir():
        return True
    bundle, colon, _ = what.rpartition(":")
    return what.startswith((".", "/", "~")) and not (colon and Path(bundle).expanduser().is_dir())


async def written(kind: BundleKind, what: str, stores: Stores) -> str:
    """The id of an entry that is stored now: a stored one's own, or of what was written for a folder or bundle.

    Raises:
        NotFoundError: Nobody knows it.
        ProblemsError: Everything wrong with it.
    """
    from agent_env.bundles import materialise
    from agent_env.bundles.model import KINDS

    if not is_folder(what) and stores.documents.get(KINDS[kind].collection, what) is not None:
        return what
    plan, id = await asyncio.to_thread(planned, kind, what, stores)
    await asyncio.to_thread(materialise, plan, stores)
    return id


def put(kind: BundleKind, what: str, id: str | None, *, dry_run: bool, as_json: bool, next_command: str) -> None:
    """Stores an entry with all that it refers to, and shows what was written.

    Args:
        kind: What it is.
        what: Its folder or name.
        id: Its id, for a folder.
        dry_run: Write nothing.
        as_json: For programs.
        next_command: What people probably want next; its id follows.
    """
    from agent_env.bundles import materialise
    from agent_env.cli.session import opened_stores, stores_of

    with opened_stores() as memory:
        stores = stores_of(memory)
        plan, entry_id = planned(kind, what, stores, id)
        made = materialise(plan, stores, dry_run=dry_run)
    if as_json:
        write_json({"id": entry_id, "dry_run": dry_run, "entries": _entries(made)})
        return
    for entry in made.entries:
        line(f"{entry.id}: {entry.became}")
    if not dry_run:
        note(f"{next_command} {shlex.quote(entry_id)}")


def _entries(made: Written) -> list[dict[str, Any]]:
    return [
        {"name": entry.name, "id": entry.id, "version": entry.version, "changed": entry.changed, "reasons": [*entry.reasons]}
        for entry in made.entries
    ]
