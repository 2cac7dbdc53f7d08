"""Listing and removing stored documents, and listing what is up of them: what commands of one collection have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from agent_env.cli.frame import same_command
from agent_env.cli.output import json_option, line, moment, note, table, write_json
from agent_env.cli.session import find_run, opened_engine, opened_stores, or_run, run_async
from agent_env.diagnostics import each
from agent_env.errors import NotFoundError, UsageError

if TYPE_CHECKING:
    from agent_env.engine import TeardownReport
    from agent_env.stores import Document
    from agent_env.stores.opening import Memory

F = TypeVar("F", bound=Callable[..., Any])


def page_options(function: F) -> F:
    """The options of a list: which ids, how many, from where on."""
    options = (
        click.option("--contains", help="Only ids that contain this."),
        click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="At most this many."),
        click.option("--offset", type=click.IntRange(min=0), default=0, help="Leave this many out: the next page."),
        json_option,
    )
    for option in reversed(options):
        function = option(function)
    return function


def one_id(offer: Any, help: str, *, name: str = "id", metavar: str = "ID") -> Callable[[F], F]:
    """An id that may be given in front, or by `--id`, as the reference wants it.

    Args:
        offer: Completes it.
        help: Says whose it is.
        name: The parameter that gets it.
        metavar: What help calls what stands in front, which may be more than an id.
    """

    def decorate(function: F) -> F:
        @wraps(function)
        def given(*args: Any, id: str | None, named: str | None, **rest: Any) -> Any:
            if (id is None) is (named is None):
                raise UsageError("an id is needed" if id is None else "the id is given twice", hint="in front, or by --id")
            return function(*args, **{name: id or named}, **rest)

        argument = click.argument("named", metavar=metavar, required=False, shell_complete=offer)
        return cast("F", argument(click.option("--id", "id", shell_complete=offer, help=help)(given)))

    return decorate


def print_document(collection: str, id: str, version: int | None) -> None:
    """One stored document as JSON, with what it is stored under.

    Raises:
        NotFoundError: There is none, or not in that version.
    """
    with opened_stores() as memory:
        document = memory.documents.named(collection, id, version)
    write_json({**document.body, "id": document.id, "type": document.type, "version": document.version})


def recorded_as_up(memory: Memory, key: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Run and record of what runs list under a key of their context and whose sandbox is recorded as being there, newest first."""
    from agent_env.cli.session import context_of
    from agent_env.engine import installation_of
    from agent_env.stores.records import OPEN_STATES

    there, elsewhere = dict[str, set[str]](), installation_of(memory.config).ownership.elsewhere
    for resource in memory.journal.resources(state=OPEN_STATES):
        if elsewhere(resource.labels) is None:
            there.setdefault(resource.run_id, set()).add(resource.id)
    for run_id in reversed(there):
        for record in context_of(memory.journal.load(run_id)).get(key) or ():
            if record.get("sandbox_id") in there[run_id]:
                yield run_id, record


def show_deployed(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], *, what: str, as_json: bool) -> None:
    """Shows what is up, a row each.

    Args:
        rows: Their values are in the columns' order.
        columns: The table's heads.
        what: What they are, in the singular: said where there is none.
        as_json: Print one object instead.
    """
    if as_json:
        write_json({"deployed": rows})
    elif not rows:
        note(f"no {what} is up")
    else:
        table(columns, [list(row.values()) for row in rows])


def list_newest(
    collection: str, facts: Callable[[Document], Mapping[str, Any]], *, limit: int, offset: int, as_json: bool, **which: Any
) -> None:
    """Shows the newest version of each document of a collection.

    Args:
        collection: Its name, and that of its list in the JSON.
        facts: What is said of a document beside its id, version and dates.
        limit: Most that are shown.
        offset: How many are left out before.
        as_json: For programs.
        **which: Filters of `Documents.latest`.
    """
    with opened_stores() as stores:
        page = stores.documents.latest(collection, limit=limit, offset=offset, **which)
        found = [(document, facts(document)) for document in page.items]
    if as_json:
        items = [{"id": d.id, "version": d.version, **said, "digest": d.digest, "created_at": d.created_at} for d, said in found]
        write_json({collection: items})
    elif not found:
        note(f"no {collection}")
    else:
        headings = ("ID", "VERSION", *(name.upper() for name in found[0][1]), "CREATED (UTC)")
        rows = [(d.id, d.version, *said.values(), moment(d.created_at)) for d, said in found]
        table(headings, rows, right=[i for i, value in enumerate(rows[0]) if isinstance(value, int)])
        if page.more:
            note(f"more: {same_command(offset=offset + limit)}")


def remove(collection: str, ids: Sequence[str], version: int | None, *, as_json: bool, runs_too: bool = False) -> None:
    """Removes documents, all or none.

    Args:
        collection: Where they are.
        ids: Which.
        version: Only this one; None is all.
        as_json: For programs.
        runs_too: The command takes ids of runs as well.

    Raises:
        NotFoundError: One is not there.
    """
    with opened_stores() as stores:

        def look_for(id: str) -> None:
            try:
                stores.documents.named(collection, id, version)
            except NotFoundError as error:
                raise or_run(error, id, stores) if runs_too else error from None

        each(look_for, ids)
        for id in ids:
            stores.documents.delete(collection, id, version)
    if as_json:
        write_json({"removed": list(ids)})
    else:
        for id in ids:
            line(f"{id}: removed{f' v{version}' if version else ''}")


def take_down_or_remove(collection: str, targets: Sequence[str], version: int | None, *, as_json: bool) -> int:
    """Takes down runs that brought something up, or removes stored documents. Returns the exit code.

    Args:
        collection: Where the documents are.
        targets: Ids of runs, or of documents.
        version: Of documents only this one; None is all.
        as_json: For programs.

    Raises:
        NotFoundError: One is not there.
        UsageError: Some are runs, and some are not.
    """
    from agent_env.cli.run_view import show_elsewhere

    runs = [target for target in targets if target.startswith("run-")]
    if runs and len(runs) < len(targets):
        raise UsageError("runs and ids of what is stored are removed one kind at a time")
    if not runs:
        remove(collection, targets, version, as_json=as_json, runs_too=True)
        return 0

    async def work() -> list[tuple[str, TeardownReport]]:
        async with opened_engine() as engine:
            found = [row.run_id for row in each(partial(find_run, engine.stores), runs)]
            return [(run_id, await engine.teardown(run_id)) for run_id in found]

    reports = run_async(work)
    if as_json:
        write_json({"runs": [{"run": run_id, **report.to_json()} for run_id, report in reports]})
    for run_id, report in reports if not as_json else ():
        line(f"{run_id}: removed {len(report.removed)}, already gone {len(report.absent)}")
        for name, why in report.failed.items():
            note(f"{name}: {why}")
        show_elsewhere(report, run_id)
    return 0 if all(report.clean for _, report in reports) else 1
