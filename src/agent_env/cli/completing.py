"""What Tab offers for an argument: runs, sandboxes, steps, bundles, tasks, evals, agents, environments, providers, stored ids,
configuration keys.

Asked for at each press of a key: nothing is created, no database server is waited for, and whatever goes wrong there is nothing to offer.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from agent_env.errors import AgentEnvError
from agent_env.wording import counted

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from agent_env.stores import RunRow
    from agent_env.stores.opening import Memory

Offer = Callable[[click.Context, click.Parameter, str], "list[CompletionItem]"]
Word = tuple[str, str]
"""What is offered, and one line about it."""
Words = Callable[[click.Context, str], Iterator[Word]]

NEWEST_RUNS = 200
"""More nobody looks through; an older id is typed or copied."""
_SQLITE = "sqlite:///"
_RUN, _GROUP = "run-", "group-"
"""What the ids begin with that we give."""


def _offer(words: Words, *, folders: bool = False) -> Offer:
    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        taken = ctx.params.get(param.name or "")
        given = {str(word) for word in taken} if isinstance(taken, Sequence) and not isinstance(taken, str) else set[str]()
        try:
            found = [(word, said) for word, said in words(ctx, incomplete) if word.startswith(incomplete) and word not in given]
        except (AgentEnvError, OSError):
            found = []
        items = [CompletionItem(word, help=" ".join(said.split())) for word, said in dict(found).items()]
        return [*items, CompletionItem(incomplete, type="file")] if folders else items

    return complete


def _before(ctx: click.Context, name: str) -> str | None:
    """An argument that was typed already. While an option still waits for its value, click leaves arguments unnamed."""
    typed = ctx.params.get(name) or next((word for word in ctx.args if not word.startswith("-")), None)
    return str(typed) if typed else None


@contextmanager
def _stores() -> Iterator[Memory | None]:
    """This installation's stores if there are any in a file: Tab makes no database, and waits for no server."""
    from agent_env.config import load_config
    from agent_env.stores.opening import open_memory

    config = load_config(Path.cwd(), os.environ, untrusted="skip")
    url = config.database_url
    if url.startswith(_SQLITE) and Path(url.removeprefix("sqlite://").partition("?")[0]).is_file():
        with open_memory(config) as memory:
            yield memory
    else:
        yield None


def _runs(_ctx: click.Context, _incomplete: str) -> Iterator[Word]:
    with _stores() as stores:
        yield from map(_run, stores.journal.list_runs(limit=NEWEST_RUNS) if stores is not None else ())


def _unfinished(_ctx: click.Context, _incomplete: str) -> Iterator[Word]:
    """Runs with something to go on with."""
    with _stores() as stores:
        found = stores.journal.list_runs(limit=NEWEST_RUNS) if stores is not None else ()
        yield from (_run(run) for run in found if run.status != "completed")


def _run(run: RunRow) -> Word:
    return run.run_id, f"{run.bundle_path or run.task_id}: {run.word or run.status}, {run.created_at[:16].replace('T', ' ')}"


def _bare(words: Words) -> Words:
    """The same, with ids of runs without their `run-` where they are typed so."""

    def offered(ctx: click.Context, incomplete: str) -> Iterator[Word]:
        whole = incomplete.startswith(_RUN[: len(incomplete)])
        yield from ((word if whole else word.removeprefix(_RUN), said) for word, said in words(ctx, incomplete))

    return offered


def _groups(_ctx: click.Context, _incomplete: str) -> Iterator[Word]:
    """What the newest runs have in common, each with how many they are and when the last one was begun."""
    with _stores() as stores:
        found: dict[str, list[str]] = {}
        for run in stores.journal.list_runs(limit=NEWEST_RUNS) if stores is not None else ():
            if run.group_id:
                found.setdefault(run.group_id, []).append(run.created_at[:16].replace("T", " "))
    for group, moments in found.items():
        yield group, f"{counted(len(moments), 'run')}, {moments[0]}"


def _runs_and_groups(ctx: click.Context, incomplete: str) -> Iterator[Word]:
    """Runs first; groups that other programs can name as they like only once something of the name is typed."""
    yield from _runs(ctx, incomplete)
    yield from ((group, said) for group, said in _groups(ctx, incomplete) if incomplete or group.startswith(_GROUP))


def _models(_ctx: click.Context, _incomplete: str) -> Iterator[Word]:
    """Models that the configuration names; patterns of names are none."""
    from agent_env.config import load_config
    from agent_env.config.checks import is_reference

    model = load_config(Path.cwd(), os.environ, untrusted="skip").model
    listed = (name for table in model.endpoints.values() for name in table.get("models") or ())
    for name in (model.default, *model.roles.values(), *listed, *model.prices):
        if name and not is_reference(name) and "*" not in name:
            yield name, ""


def _places(ctx: click.Context, incomplete: str) -> Iterator[Word]:
    """`RUN`, and behind a colon the names of its sandboxes."""
    named, colon, _ = incomplete.partition(":")
    if not colon:
        yield from _runs(ctx, incomplete)
        return
    with _stores() as stores:
        if stores is not None:
            for resource in stores.journal.load(stores.journal.find_run(named).run_id).resources:
                yield f"{named}:{resource.name}", f"{resource.kind} of {resource.provider}, {resource.state}"


def _sides(ctx: click.Context, incomplete: str) -> Iterator[Word]:
    yield from ((f"{run}:/", said) for run, said in _runs(ctx, incomplete))


def _steps(ctx: click.Context, _incomplete: str) -> Iterator[Word]:
    """The steps of the run that was named before."""
    with _stores() as stores:
        run = _before(ctx, "run")
        if stores is not None and run:
            stored = stores.journal.load(stores.journal.find_run(run).run_id)
            yield from ((step["id"], step["type"]) for step in (stored.task or {}).get("steps", ()))


def _decisions(ctx: click.Context, incomplete: str) -> Iterator[Word]:
    for step, type in _steps(ctx, incomplete):
        yield f"{step}=repeat", f"{type}: do it again"
        yield f"{step}=done", f"{type}: take it as done"


def _bundles(_ctx: click.Context, _incomplete: str) -> Iterator[Word]:
    from agent_env.bundles.installed import installed_bundles

    yield from ((bundle.name, bundle.distribution) for bundle in installed_bundles())


def _runnable(ctx: click.Context, incomplete: str) -> Iterator[Word]:
    yield from _bundles(ctx, incomplete)
    yield from _ids_of("tasks")(ctx, incomplete)


def _whats(folder: str) -> Words:
    """What can be deployed of a kind, beside folders: aliases and entries of installed bundles, and stored ids."""

    def words(ctx: click.Context, incomplete: str) -> Iterator[Word]:
        from agent_env.bundles.installed import aliases_of, entries_of, installed_bundles

        bundles = installed_bundles()
        yield from aliases_of(bundles).get(folder, {}).items()
        yield from ((name, bundle.distribution) for name, bundle in entries_of(bundles, folder))
        yield from _ids_of(folder)(ctx, incomplete)

    return words


def _runs_and(words: Words) -> Words:
    def both(ctx: click.Context, incomplete: str) -> Iterator[Word]:
        yield from words(ctx, incomplete)
        yield from _runs(ctx, incomplete)

    return both


def _providers(_ctx: click.Context, incomplete: str) -> Iterator[Word]:
    """Names of providers; of a chain, the next one."""
    from agent_env.config import load_config
    from agent_env.sandboxes.registry import names

    config = load_config(Path.cwd(), os.environ, untrusted="skip")
    before = f"{incomplete.rpartition(',')[0]}," if "," in incomplete else ""
    yield from ((f"{before}{name}", "") for name in (*names(), *config.sandbox.providers) if name not in before.split(","))


def _entries(folder: str, suffix: str) -> Words:
    """The names of one kind in the bundle that was named before."""

    def words(ctx: click.Context, _incomplete: str) -> Iterator[Word]:
        from agent_env.bundles.installed import find_bundle

        bundle = _before(ctx, "bundle")
        if bundle:
            root = find_bundle(bundle).folder.expanduser()
            yield from ((path.stem, f"{folder}/{path.name}") for path in sorted((root / folder).iterdir()) if path.suffix == suffix)

    return words


def _ids_of(collection: str) -> Words:
    def words(_ctx: click.Context, _incomplete: str) -> Iterator[Word]:
        with _stores() as stores:
            for id in stores.documents.ids(collection) if stores is not None else ():
                yield id, ""

    return words


def _keys(_ctx: click.Context, _incomplete: str) -> Iterator[Word]:
    from agent_env.config.keys import KEYS as CONFIGURED
    from agent_env.config.keys import LIMIT_PREFIX
    from agent_env.defaults import Limits

    yield from ((key, "") for key in (*CONFIGURED, *(f"{LIMIT_PREFIX}{name}" for name in Limits.names())))


def _secrets(_ctx: click.Context, _incomplete: str) -> Iterator[Word]:
    from agent_env.config import load_config
    from agent_env.stores import Secrets
    from agent_env.stores.opening import SECRETS_FILE

    config = load_config(Path.cwd(), os.environ, untrusted="skip")
    yield from ((name, "") for name in Secrets(config.state_root / SECRETS_FILE).names())


RUNS = _offer(_bare(_runs))
UNFINISHED_RUNS = _offer(_bare(_unfinished))
PLACES = _offer(_bare(_places))
GROUPS = _offer(_groups)
RUNS_AND_GROUPS = _offer(_bare(_runs_and_groups))
MODELS = _offer(_models)
SIDES = _offer(_bare(_sides), folders=True)
STEPS = _offer(_steps)
DECISIONS = _offer(_decisions)
BUNDLES = _offer(_bundles, folders=True)
RUNNABLE = _offer(_runnable, folders=True)
TASKS = _offer(_entries("tasks", ".json"))
EVALS = _offer(_entries("evals", ".toml"))
TASK_IDS = _offer(_ids_of("tasks"))
EVAL_IDS = _offer(_ids_of("evals"))
ARTIFACT_IDS = _offer(_ids_of("artifacts"))
AGENTS = _offer(_whats("agents"), folders=True)
ENVS = _offer(_whats("envs"), folders=True)
AGENT_TARGETS = _offer(_runs_and(_whats("agents")), folders=True)
ENV_TARGETS = _offer(_runs_and(_whats("envs")), folders=True)
UP_OR_STORED_AGENTS = _offer(_runs_and(_ids_of("agents")))
UP_OR_STORED_ENVS = _offer(_runs_and(_ids_of("envs")))
STORED_AGENTS = _offer(_ids_of("agents"))
STORED_ENVS = _offer(_ids_of("envs"))
PROVIDERS = _offer(_providers)
KEYS = _offer(_keys)
SECRETS = _offer(_secrets)
