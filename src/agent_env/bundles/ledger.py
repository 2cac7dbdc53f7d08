"""What changed since the last write, and why: a bundle writes only that.

A row of the run database holds, for each document, what went into it. An interrupted write leaves a pending row; what it had stored is
adopted when it is what would be written now. Content decides everywhere, so a document that is the same already is never written twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent_env.bundles.agents import agent_body
from agent_env.bundles.documents import Hashes, eval_body, task_body
from agent_env.bundles.environments import environment_body
from agent_env.bundles.model import COLLECTION_OF, BundleKind
from agent_env.bundles.planned import Write
from agent_env.bundles.references import Reference
from agent_env.documents.updates import Json
from agent_env.errors import AgentEnvError

if TYPE_CHECKING:
    from agent_env.artifacts import Artifacts
    from agent_env.stores.documents import Head
    from agent_env.stores.ledger import LedgerRow

SCHEME = 1
"""Changes when what goes into a digest does; every document is compared anew then."""
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Check:
    """What the ledger says of one write."""

    inputs: Mapping[str, Json]
    version: int
    """The version that holds this content: the stored one, or the one that a write would make."""
    reasons: tuple[str, ...] = ()
    """Why it has to be written; none means that it need not."""
    adopted: bool = False
    """The stored version is right although no finished row says so."""
    certain: bool = True
    """False when a file changed while it was written: nobody knows which content the stored version has."""

    @property
    def content(self) -> str:
        """Digest of what the entry itself says, without versions and ids of others."""
        from agent_env.stores import digest_of

        return digest_of({key: self.inputs[key] for key in ("type", "config", "files", "uses") if key in self.inputs})

    @property
    def changed(self) -> bool:
        """A write is needed."""
        return bool(self.reasons)


class Versions:
    """The versions of the documents of one plan, written or predicted, and of those of the stores that it uses unpinned.

    Args:
        pinned: Collection and id → newest version while planning.
    """

    def __init__(self, pinned: Mapping[tuple[str, str], int]) -> None:
        self._pinned = pinned
        self._own: dict[tuple[str, str], int] = {}

    def note(self, write: Write, version: int) -> None:
        """A document of the plan has, or will have, this version."""
        self._own[write.collection, write.entry.id] = version

    def of(self, reference: Reference) -> int:
        """The version that a reference means."""
        key = COLLECTION_OF[reference.kind], reference.id
        return reference.version or self._own.get(key) or self._pinned[key]

    def own(self, reference: Reference) -> int | None:
        """The version of a document of the plan; None for one of the stores."""
        return self._own.get((COLLECTION_OF[reference.kind], reference.id))


def body_of(write: Write, versions: Versions) -> dict[str, Json] | None:
    """The document of a task, an eval, an environment or an agent; None for what artifacts write."""
    match write.entry.kind:
        case BundleKind.ENV:
            return environment_body(write.resolved, versions.of)
        case BundleKind.AGENT:
            return agent_body(write.resolved, versions.of)
        case BundleKind.TASK:
            return task_body(write.resolved)
        case BundleKind.EVAL:
            return eval_body(write.resolved)
    return None


def digest_for(write: Write, inputs: Mapping[str, Json]) -> str:
    """What a row compares: everything that goes into a document, and how it is compared."""
    from agent_env.stores import digest_of

    return digest_of({"scheme": SCHEME, "collection": write.collection, "id": write.entry.id, "inputs": inputs})


class Checker:
    """Compares writes with what is stored.

    Args:
        rows: The ledger's rows by collection and id.
        heads: Newest versions by collection and id.
        hashes: Digests of files.
        artifacts: Where stored files are looked up before they are adopted.
    """

    def __init__(
        self,
        rows: Mapping[tuple[str, str], LedgerRow],
        heads: Mapping[tuple[str, str], Head],
        hashes: Hashes,
        artifacts: Artifacts,
    ) -> None:
        self._contents: dict[tuple[str, str], str] = {}
        self._rows = rows
        self._heads = heads
        self._hashes = hashes
        self._artifacts = artifacts

    def check(self, write: Write, versions: Versions) -> Check:
        """What to do about one write.

        Args:
            write: The entry.
            versions: Versions of the documents before it.
        """
        key = (write.collection, write.entry.id)
        found = self._checked(write, versions, self._rows.get(key), self._heads.get(key))
        self._contents[key] = found.content
        return found

    def _checked(self, write: Write, versions: Versions, row: LedgerRow | None, head: Head | None) -> Check:
        from agent_env.stores import digest_of

        body = body_of(write, versions)
        inputs = self._inputs(write, body, versions)
        if head is None:
            return Check(inputs, 1, ("new",))
        if row is not None and row.status == "done" and row.version == head.version and row.digest == digest_for(write, inputs):
            return Check(inputs, head.version)
        if body is not None and digest_of(body) == head.digest:
            return Check(inputs, head.version, adopted=True)
        if body is None and (row is None or row.status == "pending") and self._is_stored(write, head.version):
            return Check(inputs, head.version, adopted=True)
        return Check(inputs, head.version + 1, tuple(_reasons(write, row, inputs, head.version)) or ("its content changed",))

    def _inputs(self, write: Write, body: Mapping[str, Json] | None, versions: Versions) -> dict[str, Json]:
        from agent_env.stores import digest_of

        entry, has_images = write.entry, write.entry.kind in {BundleKind.ENV, BundleKind.AGENT}
        if body is not None and not has_images:
            return {"type": entry.type, "config": digest_of(body)}
        needs = {ref.id: version for ref in write.resolved.references if (version := versions.own(ref)) is not None}
        pins = {ref.id: ref.version for ref in write.resolved.references if ref.id not in needs}
        files = self._files(write)
        config = digest_of({key: value for key, value in entry.config.items() if key != "id"})
        inputs = {"type": entry.type, "config": config, "files": files, "needs": needs, "store_refs": pins}
        if not has_images:
            return inputs
        contents = [self._contents.get((COLLECTION_OF[ref.kind], ref.id), "") for ref in write.resolved.references]
        return {**inputs, "store_refs": {ref.id: versions.of(ref) for ref in write.resolved.references if ref.id in pins}, "uses": contents}

    def _files(self, write: Write) -> dict[str, str]:
        """Of an image those that it is built from, without what its ignore file names."""
        if write.context is not None:
            return {entry.name: f"{entry.content}{'+x' if entry.mode & 0o100 else ''}" for entry in write.context.entries}
        return {name: self._hashes.facts(path).text() for name, path in write.entry.files.items()}

    def _is_stored(self, write: Write, version: int) -> bool:
        """Whether the stored artifact holds these very files, under the same type."""
        entry = write.entry
        if entry.type not in {"file", "file_artifact_universe", "skill"}:
            return False
        try:
            stored = self._artifacts.get(entry.id, version)
            files = self._artifacts.files(entry.id, version)
        except AgentEnvError:
            return False
        description = stored.body.get("description", "") if entry.type == "file" else entry.config.get("description", "")
        here = {name: self._hashes.facts(path) for name, path in entry.files.items()}
        there = {name: (file.sha256, bool(file.mode & 0o111)) for name, file in files.items()}
        same_files = there == {name: (facts.sha256, facts.executable) for name, facts in here.items()}
        return stored.type == entry.type and same_files and description == entry.config.get("description", "")


def _reasons(write: Write, row: LedgerRow | None, inputs: Mapping[str, Json], head: int) -> Iterable[str]:
    """Why the stored version is not the one that is wanted."""
    if row is None:
        yield f"v{head} was not written by a bundle"
        return
    if row.bundle != write.bundle_id:
        yield f"last written by another bundle ({row.bundle})"
    if row.scheme != SCHEME:
        yield "it is compared in another way now"
    if row.version != head:
        yield f"v{head} was written since"
    before = row.inputs
    if before.get("type") != inputs["type"]:
        yield f"type was {before.get('type')!r}"
    if before.get("config") != inputs["config"]:
        yield "steps changed" if write.entry.kind is BundleKind.TASK else "configuration changed"
    yield from _file_reasons(before.get("files") or {}, inputs.get("files") or {})
    for key in ("needs", "store_refs"):
        old, new = before.get(key) or {}, inputs.get(key) or {}
        yield from (f"{id} changed (v{old.get(id)} → v{new[id]})" for id in sorted(new) if old.get(id) != new[id])


def _file_reasons(before: Mapping[str, str], now: Mapping[str, str]) -> Iterable[str]:
    groups = {
        "added": sorted(set(now) - set(before)),
        "removed": sorted(set(before) - set(now)),
        "changed": sorted(name for name in set(now) & set(before) if now[name] != before[name]),
    }
    for what, names in groups.items():
        if names:
            more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
            yield f"{what} {', '.join(names[:_SHOWN])}{more}"
