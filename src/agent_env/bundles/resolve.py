"""From names to ids: every reference of a bundle, and of each task what its steps write and in which order that holds together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from agent_env.bundles.json_paths import Path, rewritten, spelled, texts_in, value_at, values_at
from agent_env.bundles.model import Bundle, Entry
from agent_env.bundles.references import (
    AliasOf,
    Output,
    Reference,
    RefsOf,
    ResolvedBundle,
    ResolvedEntry,
    Resolver,
    Site,
    Unknown,
    no_alias,
)
from agent_env.documents.task import TaskDocument
from agent_env.documents.updates import Json
from agent_env.engine.mending import mended
from agent_env.errors import Problem
from agent_env.ids import LOCAL
from agent_env.steps.contract import EntityRef

DEFAULTED: Mapping[str, Mapping[str, str]] = {
    "deploy_sandbox": {"sandbox_type": "sandbox"},
    "deploy_env": {"sandbox_type": "sandbox"},
    "deploy_agent": {"sandbox_type": "sandbox", "a2a_agent_id": "agent"},
    "install_agent": {"a2a_agent_id": "agent"},
}
"""Step type → its fields that a default of `bundle.toml` fills. (Its model becomes the run's solver model.)"""


def resolve_bundle(bundle: Bundle, refs_of: RefsOf, alias_of: AliasOf = no_alias) -> tuple[ResolvedBundle, list[Problem]]:
    """Resolves every reference of a bundle.

    Args:
        bundle: Parsed.
        refs_of: The declared references of a step type.
        alias_of: The id that a name of an installed bundle stands for.

    Returns:
        The resolved bundle and all problems.
    """
    resolver = Resolver(bundle, refs_of, alias_of)
    entries = tuple(
        resolver.toml(entry) if entry.task is None else TaskResolver(resolver, entry, entry.task).resolve() for entry in bundle.entries
    )
    return ResolvedBundle(bundle, (*entries, *map(ResolvedEntry, resolver.derived))), resolver.problems


class TaskResolver:
    """Resolves the references of one task.

    Args:
        resolver: The bundle's names; receives what is wrong.
        entry: The task's entry.
        task: Its document, as written.
    """

    def __init__(self, resolver: Resolver, entry: Entry, task: TaskDocument) -> None:
        self._resolver = resolver
        self._entry = entry
        self._task = task
        self._outputs: dict[str, Output] = {}
        self._references: list[Reference] = []
        self._unsure = mended(task, entry.found)[1] if entry.found else frozenset[str]()
        """Steps of which it is not known what they wait for."""

    def resolve(self) -> ResolvedEntry:
        """The task with ids where the author wrote names."""
        found = list(self._find_outputs())
        self._outputs = {output.id.removeprefix(f"{self._task.id}/"): output for output in found} | {output.id: output for output in found}
        changed: dict[int, list[tuple[Path, str]]] = {}
        for index, written in enumerate(self._task.steps):
            declared = self._resolver.declared(written.get("type", ""))
            changes = list(self._defaults(written)) if self._resolver.has_defaults else []
            step = {**written, **{str(path[0]): value for path, value in changes}} if changes else written
            if declared is None:
                self._opaque(index, step)
            elif not isinstance(declared, Unknown):
                changes += [change for ref, keys in declared for change in self._field(index, step, ref, keys)]
            if changes:
                changed[index] = changes
        return ResolvedEntry(self._entry, tuple(self._references), outputs=tuple(found), task=rewritten(self._task, changed))

    def _defaults(self, step: Mapping[str, Json]) -> Iterator[tuple[Path, str]]:
        """What `bundle.toml` says where the step says nothing."""
        for field, setting in DEFAULTED.get(step.get("type", ""), {}).items():
            value = getattr(self._resolver.settings, setting)
            if value is not None and step.get(field) is None:
                yield (field,), value

    def _field(self, index: int, step: Mapping[str, Json], ref: EntityRef, keys: tuple[str, ...]) -> Iterator[tuple[Path, str]]:
        """The places of a declared field whose text becomes another one."""
        for path, written in values_at(step, keys):
            if not isinstance(written, str) or not written.strip():
                continue
            version = value_at(step, (*path[:-1], ref.version_field)) if ref.version_field else None
            pinned = version if type(version) is int else None
            site = Site(ref.kind, written, pinned, self._entry.path, spelled(index, path), ref.artifact_type)
            id = self._meaning(index, ref, site)
            if id != written:
                yield path, id

    def _meaning(self, index: int, ref: EntityRef, site: Site) -> str:
        output = self._outputs.get(site.written)
        if ref.role == "output":
            return output.id if output else site.written
        if output is not None and output.kind == ref.kind:
            self._check_output(index, output, site)
            return output.id
        reference = self._resolver.reference(site)
        self._references.append(reference)
        return reference.id

    def _check_output(self, index: int, output: Output, site: Site) -> None:
        if site.version is not None:
            message = f"step {output.step_id!r} of this task writes it, so it has no fixed version"
            self._resolver.problem(site, message, "leave the version out")
        if site.artifact_type and output.artifact_type and site.artifact_type != output.artifact_type:
            message = f"step {output.step_id!r} writes an artifact of type {output.artifact_type!r}; {site.artifact_type!r} is needed here"
            self._resolver.problem(site, message)
        step_id = self._task.steps[index]["id"]
        before = self._task.ancestors(step_id)
        if output.step_id not in before and self._unsure.isdisjoint({step_id, *before}):
            message = f"nothing makes this step wait for {output.step_id!r}, which writes it"
            self._resolver.problem(site, message, f"add {output.step_id!r} to depends_on")

    def _find_outputs(self) -> Iterator[Output]:
        for index, step in enumerate(self._task.steps):
            declared = self._resolver.declared(step.get("type", ""))
            for ref, keys in declared if isinstance(declared, list) else ():
                if ref.role == "output":
                    yield from self._outputs_of(index, step, ref, keys)

    def _outputs_of(self, index: int, step: Mapping[str, Json], ref: EntityRef, keys: tuple[str, ...]) -> Iterator[Output]:
        for path, written in values_at(step, keys):
            if not isinstance(written, str) or not written.strip():
                continue
            id = written if written.startswith(LOCAL) else f"{self._task.id}/{written}"
            own = f"step {step['id']!r} of {self._entry.path}"
            owner = self._resolver.written_by.setdefault(id, own)
            if owner != own:
                site = Site(ref.kind, written, None, self._entry.path, spelled(index, path))
                self._resolver.problem(site, f"writes {id!r}, which {owner} makes too", "give one of them another name")
            yield Output(ref.kind, id, index, step["id"], ref.artifact_type)

    def _opaque(self, index: int, step: Mapping[str, Json]) -> None:
        """A type that declares nothing can't have its ids rewritten, so it may not use the bundle's own names."""
        for path, text in texts_in(step, ()):
            if text in self._outputs or self._resolver.is_own(text):
                message = f"steps of type {step['type']!r} don't declare what they refer to, so the name {text!r} can't become an id here"
                site = Site("artifact", text, None, self._entry.path, spelled(index, path))
                self._resolver.problem(site, message, "the step's class declares it in entity_refs")
