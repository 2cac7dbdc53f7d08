"""Writing a plan's documents: only what changed, safely beside other processes; a dry run predicts the same and writes nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from agent_env.bundles.documents import IMAGE, WRITERS, Hashes
from agent_env.bundles.ledger import SCHEME, Check, Checker, Versions, body_of, digest_for
from agent_env.bundles.lookups import PlanStores
from agent_env.bundles.model import COLLECTION_OF
from agent_env.bundles.planned import BundlePlan, PlannedTask, Write
from agent_env.bundles.references import ResolvedEntry
from agent_env.engine.literals import Keep, plan_without_literals, without_literals
from agent_env.errors import AgentEnvError, Problem, ProblemsError, StorageError

if TYPE_CHECKING:
    from agent_env.artifacts import ArtifactDocument
    from agent_env.images import BuildContext
    from agent_env.stores import Database, Ledger, LedgerRow, Secrets
    from agent_env.stores.documents import Head


class WriteStores(PlanStores, Protocol):
    """What writing needs."""

    @property
    def db(self) -> Database:
        """The run database, which keeps the ledger."""
        ...

    @property
    def secrets(self) -> Secrets:
        """Where literal secrets of documents are kept."""
        ...


@dataclass(frozen=True, slots=True)
class WrittenEntry:
    """What became of one entry."""

    name: str
    """`tasks/hello.json`"""
    id: str
    version: int
    check: Check

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why a new version was (or would be) written; none when the stored one is right."""
        return self.check.reasons

    @property
    def content(self) -> str:
        """Digest of its type, configuration and files: the same wherever the bundle lies and whatever version it has."""
        return self.check.content

    @property
    def changed(self) -> bool:
        """A new version."""
        return bool(self.reasons)

    @property
    def became(self) -> str:
        """Which version it has now, and why that is new if it is."""
        return f"v{self.version} ({'; '.join(self.reasons)})" if self.reasons else f"v{self.version}, unchanged"

    def __str__(self) -> str:
        return f"{self.name}: {self.became}"


@dataclass(frozen=True)
class Written:
    """What became of a plan's entries."""

    entries: tuple[WrittenEntry, ...]
    plan: BundlePlan
    """The plan, with the versions that its tasks have now."""


Pin = Callable[[str], str]
"""Image in a registry → the same, pinned to what the registry has under that name now."""


def materialise(plan: BundlePlan, stores: WriteStores, *, dry_run: bool = False, pin: Pin = str) -> Written:
    """Writes what changed. Synchronous: an event loop gives it a thread, and holds `locks.bundle_locks` meanwhile.

    Args:
        plan: What a bundle needs.
        stores: Where documents go.
        dry_run: Write nothing, predict the versions.
        pin: Asked when an image's name is written, and not again before its entry changes.

    Raises:
        ProblemsError: An entry can't be written; those before it are, and are found unchanged next time.
        StorageError: A file can't be read, or the stores can't be written.
    """
    plan = _without_literals(plan, stores.secrets.reference_to if dry_run else stores.secrets.keep)
    hashes = Hashes()
    checks = _check(plan, stores, hashes)
    if not dry_run:
        _restore(plan.writes, checks, stores, hashes)
    if not dry_run and any(check.changed or check.adopted for check in checks):
        checks = _write(plan, checks, stores, hashes, pin)
    entries = tuple(
        WrittenEntry(write.entry.path, write.entry.id, check.version, check) for write, check in zip(plan.writes, checks, strict=True)
    )
    if dry_run:
        return Written(entries, plan)
    versions = {write.entry.id: check.version for write, check in zip(plan.writes, checks, strict=True) if write.entry.task is not None}
    return Written(entries, replace(plan, tasks=tuple(_versioned(task, versions.get(task.id, task.version)) for task in plan.tasks)))


def _without_literals(plan: BundlePlan, keep: Keep) -> BundlePlan:
    """The plan of what is stored: literal secrets of tasks are kept apart."""
    writes = tuple(_write_without_literals(write, keep) for write in plan.writes)
    if all(new is old for new, old in zip(writes, plan.writes, strict=True)):
        return plan
    return replace(plan, writes=writes, tasks=tuple(replace(task, plan=plan_without_literals(task.plan, keep)) for task in plan.tasks))


def _write_without_literals(write: Write, keep: Keep) -> Write:
    task = write.resolved.task
    if task is None:
        return write
    steps = without_literals(task.steps, keep)
    if steps is task.steps:
        return write
    return replace(write, resolved=replace(write.resolved, task=replace(task, steps=tuple(map(dict, steps)))))


def _versioned(task: PlannedTask, version: int | None) -> PlannedTask:
    return replace(task, version=version, plan=replace(task.plan, version=version))


def _check(plan: BundlePlan, stores: WriteStores, hashes: Hashes) -> list[Check]:
    from agent_env.stores import Ledger

    ledger = Ledger(stores.db)
    heads = _heads(plan.writes, stores)
    checker = Checker(_rows(plan.writes, heads, ledger), heads, hashes, stores.artifacts)
    checks: list[Check] = []
    versions = Versions(plan.pinned)
    for write in plan.writes:
        try:
            check = checker.check(write, versions)
        except OSError as error:
            raise _unreadable(write, error) from error
        versions.note(write, check.version)
        checks.append(check)
    return checks


def _heads(writes: Sequence[Write], stores: WriteStores) -> dict[tuple[str, str], Head]:
    ids: dict[str, list[str]] = {}
    for write in writes:
        ids.setdefault(write.collection, []).append(write.entry.id)
    return {(collection, id): head for collection, of in ids.items() for id, head in stores.documents.heads(collection, of).items()}


def _rows(writes: Sequence[Write], heads: Mapping[tuple[str, str], Head], ledger: Ledger) -> dict[tuple[str, str], LedgerRow]:
    """The ledger's rows: a bundle's own in one question, others' one by one, where there is a document that they could be about."""
    found = {(row.collection, row.id): row for bundle in {write.bundle_id for write in writes} for row in ledger.of_bundle(bundle)}
    for write in writes:
        key = (write.collection, write.entry.id)
        if key in heads and key not in found:
            row = ledger.get(*key)
            if row is not None:
                found[key] = row
    return found


def _write(plan: BundlePlan, checks: Sequence[Check], stores: WriteStores, hashes: Hashes, pin: Pin) -> list[Check]:
    """Pending rows first, then documents, then finished rows, so that a cut at any moment is either adopted or done again."""
    from agent_env.stores import Ledger

    ledger = Ledger(stores.db)
    work = list(zip(plan.writes, checks, strict=True))
    ledger.record_all(_row(write, check, "pending") for write, check in work if check.changed)
    done: list[Check] = []
    finished: list[LedgerRow] = []
    versions = Versions(plan.pinned)
    try:
        for write, check in work:
            after = _written(write, check, stores, versions=versions, hashes=hashes, pin=pin) if check.changed else check
            versions.note(write, after.version)
            if check.changed or check.adopted:
                finished.append(_row(write, after, "done"))
            done.append(after)
    finally:
        ledger.record_all(finished)
    return done


def _restore(writes: Sequence[Write], checks: Sequence[Check], stores: WriteStores, hashes: Hashes) -> None:
    """Stores again what unchanged artifacts refer to and the store has lost, such as an object that was damaged: its file is here."""
    for write, check in zip(writes, checks, strict=True):
        if check.changed or write.collection != COLLECTION_OF["artifact"]:
            continue
        try:
            _restore_files(write, check, stores, hashes)
        except OSError as error:
            raise _unreadable(write, error) from error


def _restore_files(write: Write, check: Check, stores: WriteStores, hashes: Hashes) -> None:
    if write.context is not None:
        from agent_env.artifacts.image_artifacts import restore_context

        restore_context(stores.artifacts, stores.artifacts.get(write.entry.id, check.version), write.context)
    elif write.entry.type != IMAGE:
        objects = stores.artifacts.objects
        for path in write.entry.files.values():
            if not objects.exists(hashes.facts(path).sha256):
                objects.put_file(path)


def _written(write: Write, check: Check, stores: WriteStores, *, versions: Versions, hashes: Hashes, pin: Pin) -> Check:
    entry = write.entry
    try:
        body = body_of(write, versions)
        if body is not None:
            return replace(check, version=stores.documents.put(write.collection, entry.id, entry.type, body).version)
        if write.context is not None:
            return replace(check, version=_image(write, write.context, stores).version)
        stored = WRITERS[entry.type](stores.artifacts, _pinned(write, pin))
        files = stores.artifacts.files(stored.id, stored.version)
    except ProblemsError as error:
        raise ProblemsError([replace(problem, file=f"{entry.path} ({problem.file or entry.id})") for problem in error.problems]) from error
    except OSError as error:
        raise _unreadable(write, error) from error
    except AgentEnvError as error:
        error.add_note(f"while writing {entry.path} ({entry.id})")
        raise
    as_hashed = {hashes.facts(path).sha256 for path in entry.files.values()}
    meanwhile = bool(entry.files) and not {file.sha256 for file in files.values()} <= as_hashed
    # A file that changed between hashing and writing: the row must not claim that the hashed content is stored.
    return replace(check, version=stored.version, certain=not meanwhile)


def _image(write: Write, context: BuildContext, stores: WriteStores) -> ArtifactDocument:
    """Packing compares each file with what was read while planning, so what is stored is what the row says."""
    from agent_env.artifacts.image_artifacts import put_context

    return put_context(stores.artifacts, write.entry.id, context, description=write.entry.config.get("description", ""))


def _pinned(write: Write, pin: Pin) -> ResolvedEntry:
    entry = write.entry
    if entry.type != IMAGE:
        return write.resolved
    return replace(write.resolved, entry=replace(entry, config={**entry.config, "ref": pin(str(entry.config["ref"]))}))


def _row(write: Write, check: Check, status: str) -> LedgerRow:
    from agent_env.stores import LedgerRow

    return LedgerRow(
        collection=write.collection,
        id=write.entry.id,
        bundle=write.bundle_id,
        status="done" if status == "done" else "pending",
        digest=digest_for(write, check.inputs) if check.certain else None,
        inputs=check.inputs,
        version=check.version,
        scheme=SCHEME,
    )


def _unreadable(write: Write, error: OSError) -> ProblemsError | StorageError:
    if error.filename is None:
        return StorageError(f"{write.entry.path} could not be stored: {error}", concerns=write.entry.path)
    return ProblemsError([Problem(f"{os.fspath(error.filename)} can't be read: {error.strerror}", write.entry.path)])
