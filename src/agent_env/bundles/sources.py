"""Where a run's task came from, and whether that says something else by now: a run goes on with what was stored when it began."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from agent_env.bundles.materialising import materialise
from agent_env.bundles.plan import plan_folder
from agent_env.bundles.work import content_digest, contents_of
from agent_env.documents.updates import Json
from agent_env.errors import AgentEnvError

if TYPE_CHECKING:
    from agent_env.bundles.materialising import WriteStores
    from agent_env.stores import RunRow


def source_of(folder: Path, id_root: str | None = None, name: str | None = None) -> dict[str, Json]:
    """What a run keeps of where its bundle is, or its task's file."""
    return {"path": str(folder.expanduser().absolute()), **({"id_root": id_root, "name": name} if id_root else {})}


def changed_since(row: RunRow, stores: WriteStores) -> Path | None:
    """The bundle or file that a run's task came from, where the task, or what it uses, has changed there since.

    None where nothing has, and where nobody can tell: it is not there any more, or the run is of a version that kept nothing of it.

    Args:
        row: The run.
        stores: What is stored of documents; nothing is written.
    """
    call = row.options.get("call") or {}
    source, content = call.get("source"), call.get("content")
    if not source or not content or not (path := Path(source["path"])).exists():
        return None
    try:
        now = _of_file(path) if row.bundle_path is None else _of_bundle(row, path, source, stores)
    except AgentEnvError:  # what could be read when the run began can't any more
        return path
    return None if now == content else path


def _of_file(path: Path) -> str:
    from agent_env.defaults import DEFAULT_LIMITS
    from agent_env.documents.reading import read_json
    from agent_env.engine import plan_document

    data = read_json(path, limit_bytes=DEFAULT_LIMITS.document_bytes)
    return content_digest(list(plan_document(data, source=str(path), task_id=path.stem).documents))


def _of_bundle(row: RunRow, folder: Path, source: dict[str, Json], stores: WriteStores) -> str | None:
    plan = plan_folder(folder, stores, tasks=[row.task_id], id_root=source.get("id_root"), name=source.get("name"))
    found = contents_of(materialise(plan, stores, dry_run=True))
    return next((content for (_, name), content in found.items() if name == row.bundle_path), None)
