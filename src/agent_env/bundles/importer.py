"""From stored documents to a bundle folder: tasks with everything that they refer to, cleaned of what belongs to whoever ran them.

The folder is written aside, checked like any bundle, and only then moved into place.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from agent_env.bundles.exporting import ArtifactExport, export_artifact
from agent_env.bundles.json_paths import declared_keys, value_at, values_at
from agent_env.bundles.lookups import PlanStores
from agent_env.bundles.new import legal_name, steps_text
from agent_env.bundles.plan import declared_refs, plan_folder
from agent_env.bundles.reading import fold
from agent_env.bundles.scrubbing import Scrubber, cleaned_step
from agent_env.documents.task import parse_task
from agent_env.documents.updates import Json
from agent_env.errors import Problem, ProblemsError, UsageError
from agent_env.ids import home_folder, local_id_root

_NAME_BYTES = 200


@dataclass
class Imported:
    """What an import wrote and what it could not."""

    folder: Path
    files: list[str] = field(default_factory=list)
    """Relative to the folder, in the order in which a reader wants them."""
    still_stored: list[str] = field(default_factory=list)
    """Documents that the bundle still needs from the stores."""
    masked: list[str] = field(default_factory=list)
    """Where something that looks like a secret was taken out, or stands in a file that was left as it is."""
    left_out: list[str] = field(default_factory=list)
    """Fields that belong to whoever runs a task, and files that a folder can't hold."""
    floating: list[str] = field(default_factory=list)
    """References without a version: written as their newest version is now."""

    def notes(self) -> list[str]:
        """All of it in sentences."""
        titles = {
            "still needs the store": self.still_stored,
            "secrets": self.masked,
            "left out": self.left_out,
            "floating": self.floating,
        }
        return [f"{title}: {entry}" for title, entries in titles.items() for entry in entries]


def import_task(
    folder: Path | str,
    stores: PlanStores,
    *,
    task_id: str | None = None,
    eval_id: str | None = None,
    version: int | None = None,
    keep_user_fields: bool = False,
    imported_at: str = "",
) -> Imported:
    """Makes a bundle folder from a stored task, or from a stored eval with its tasks.

    Args:
        folder: New or empty; its parent must exist.
        stores: Where the documents are.
        task_id: The task. Exactly one of this and `eval_id`.
        eval_id: The eval.
        version: Of that document; the newest by default.
        keep_user_fields: Also keep fields that belong to whoever runs the task.
        imported_at: For `provenance.json`.

    Raises:
        UsageError: The folder is in use or can't be one, or not exactly one source is named.
        NotFoundError: There is no such document.
        ProblemsError: What came out is no bundle that could run; nothing is left behind.
    """
    if (task_id is None) == (eval_id is None):
        raise UsageError("exactly one task or eval is imported at a time")
    target = _destination(folder)
    with _staged(target) as staging:
        work = _Import(staging, stores, keep_user_fields=keep_user_fields)
        work.read(task_id, eval_id, version)
        work.write(
            target.name, {"from": {"task" if task_id else "eval": task_id or eval_id, "version": version}, "imported_at": imported_at}
        )
        _checked(staging, stores)
        staging.replace(target)
    work.result.folder = target
    return work.result


def _destination(folder: Path | str) -> Path:
    target = Path.cwd() / Path(folder).expanduser()
    if not target.parent.is_dir():
        raise UsageError(f"the folder {target.parent} does not exist", concerns=str(folder), hint="create it first")
    target = Path(os.path.realpath(target.parent)) / target.name
    if target.is_symlink() or (target.exists() and (not target.is_dir() or any(target.iterdir()))):
        raise UsageError(f"{folder} is there already, and is not an empty folder", concerns=str(folder), hint="choose a new folder")
    local_id_root(target, home_folder(os.environ))
    return target


@contextmanager
def _staged(target: Path) -> Iterator[Path]:
    staging = target.parent / f".{target.name}.import-{os.urandom(4).hex()}"
    try:
        staging.mkdir()
        yield staging
    except OSError as error:
        raise UsageError(f"{target} can't be written: {error.strerror or error}", concerns=str(target)) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _checked(staging: Path, stores: PlanStores) -> None:
    try:
        plan_folder(staging, stores, everything=True)
    except ProblemsError as error:
        message = "what would be written can't run here, so nothing was written"
        raise ProblemsError([Problem(message), *error.problems]) from error


class _Import:
    def __init__(self, root: Path, stores: PlanStores, *, keep_user_fields: bool) -> None:
        self.result = Imported(root)
        self._root = root
        self._stores = stores
        self._keep_user_fields = keep_user_fields
        self._scrubber = Scrubber(self.result.masked)
        self._names: dict[str, set[str]] = {}
        self._artifacts: dict[tuple[str, int | None], str | None] = {}
        self._tasks: dict[tuple[str, int | None], str] = {}
        self._files: dict[str, Callable[[Path], None]] = {}

    def read(self, task_id: str | None, eval_id: str | None, version: int | None) -> None:
        """Takes in the task, or the eval and its tasks."""
        if task_id is not None:
            self._task(task_id, version)
            return
        document = self._stores.documents.named("evals", eval_id or "", version)
        tasks = [(str(entry["task_id"]), entry.get("task_version")) for entry in document.body.get("tasks", ())]
        names = [self._task(id, pinned) for id, pinned in tasks]
        name = self._name("evals", document.id)
        self._text(f"evals/{name}.toml", f"tasks = {json.dumps(names, ensure_ascii=False)}\n")

    def write(self, name: str, provenance: Mapping[str, Json]) -> None:
        """Writes everything into the folder."""
        from agent_env import __version__

        order = sorted(self._files, key=lambda path: (path.split("/")[0] not in {"tasks", "evals"}, path))
        self.result.files = ["README.md", *order, "provenance.json"]
        self._text("README.md", _readme(name, order, self.result.notes()))
        facts = {"agent_env": __version__, **provenance, "written": order}
        self._text("provenance.json", json.dumps(facts, indent=2, ensure_ascii=False) + "\n")
        for path, writer in self._files.items():
            target = self._root / path
            target.parent.mkdir(parents=True, exist_ok=True)
            writer(target)

    def _text(self, path: str, text: str) -> None:
        def write(target: Path) -> None:
            target.write_text(text, encoding="utf-8")

        self._files[path] = write

    def _task(self, id: str, version: int | None) -> str:
        if (id, version) in self._tasks:
            return self._tasks[id, version]
        document = self._stores.documents.named("tasks", id, version)
        task = parse_task(document.body, source=id, task_id=id)
        name = self._tasks[id, version] = self._name("tasks", id)
        path = f"tasks/{name}.json"
        self._text(path, steps_text([self._step(step, path) for step in task.steps]))
        return name

    def _step(self, step: Mapping[str, Json], path: str) -> dict[str, Json]:
        where = f"{path} {step['id']!r}"
        cleaned, dropped = cleaned_step(step, keep_user_fields=self._keep_user_fields)
        self.result.left_out += [f"{where}: {name}" for name in dropped]
        localized = self._localized(cleaned, where)
        return self._scrubber.scrubbed(localized, where)

    def _localized(self, step: dict[str, Json], where: str) -> dict[str, Json]:
        """References to what the bundle holds become names."""
        declared = declared_refs(step["type"])
        copy: dict[str, Json] = json.loads(json.dumps(step))
        for ref in declared if isinstance(declared, tuple) else ():
            for path, id in list(values_at(copy, declared_keys(ref.path))):
                if not isinstance(id, str) or not id.strip():
                    continue
                parent = value_at(copy, path[:-1])
                version = parent.get(ref.version_field) if ref.version_field and isinstance(parent, dict) else None
                name = self._artifact(id, version) if ref.kind == "artifact" else None
                if name is None:
                    self._note(self.result.still_stored, f"{ref.kind} {id}" + (f" v{version}" if version else ""))
                    continue
                parent[path[-1]] = name
                if version is None:
                    self._note(self.result.floating, f"{where}: {id}")
                elif ref.version_field:
                    del parent[ref.version_field]
        return copy

    def _artifact(self, id: str, version: int | None) -> str | None:
        """The bundle's name for an artifact, written on first need; None for one that a folder can't hold."""
        if (id, version) not in self._artifacts:
            export = export_artifact(self._stores.artifacts, id, version)
            self._artifacts[id, version] = None if export is None else self._write_artifact(id, export)
        return self._artifacts[id, version]

    def _write_artifact(self, id: str, export: ArtifactExport) -> str:
        name = export.skill_name or self._name("artifacts", id)
        folder = f"{'skills' if export.skill_name else 'artifacts'}/{name}"
        self._names.setdefault("artifacts", set()).add(fold(name))
        if export.toml is not None:
            self._text(f"{folder}/artifact.toml", export.toml)
        for path, file in export.files.items():
            self._files[f"{folder}/{path}"] = file.write
            self._scrubber.look(file.sample(), f"{folder}/{path}")
        self.result.left_out += [f"{folder}/{path}: a bundle does not read files of that name" for path in export.left_out]
        self.result.left_out += [f"{folder}: {what}" for what in export.dropped]
        return name

    def _name(self, folder: str, id: str) -> str:
        """The id's last segment, made legal and unique."""
        wanted = legal_name(id.rstrip("/").rsplit("/", 1)[-1]).encode()[:_NAME_BYTES].decode(errors="ignore")
        taken = self._names.setdefault(folder, set())
        name, number = wanted, 1
        while fold(name) in taken:
            number += 1
            name = f"{wanted}-{number}"
        taken.add(fold(name))
        return name

    def _note(self, notes: list[str], text: str) -> None:
        if text not in notes:
            notes.append(text)


def _readme(name: str, paths: Sequence[str], notes: Sequence[str]) -> str:
    lines = [f"# {name}", "", "Imported with `agent-env bundle init`.", "", f"    agent-env run ./{name}", "", "Contents:", ""]
    lines += [f"- `{path}`" for path in paths]
    if notes:
        lines += ["", "Notes of the import:", "", *(f"- {note}" for note in notes)]
    return "\n".join(lines) + "\n"
