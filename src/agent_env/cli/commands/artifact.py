"""`agent-env artifact`: files, folders and skills that tasks load."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agent_env.cli.completing import ARTIFACT_IDS
from agent_env.cli.frame import FilePath, Group
from agent_env.cli.output import json_option, line, table, write_json
from agent_env.cli.session import artifacts_of, opened_stores
from agent_env.cli.stored import list_newest, page_options, remove
from agent_env.errors import NotFoundError, ProblemsError, UsageError
from agent_env.wording import counted

if TYPE_CHECKING:
    from agent_env.artifacts import ArtifactDocument, Artifacts

COLLECTION = "artifacts"
STORED_TYPES = ("file", "folder", "skill", "environment", "cli", "docker_image", "file_artifact_universe", "environment_universe")
"""What `put` calls a type, and what stored artifacts call it."""


@click.group(cls=Group)
def artifact() -> None:
    """Store, fetch, list and remove artifacts: what tasks load into sandboxes, and what they collect from them."""


@artifact.command()
@click.argument("path", type=FilePath(path_type=Path))
@click.option("--id", "id", required=True, help="The artifact's id.")
@click.option("--type", "kind", type=click.Choice(["file", "folder", "skill", "environment", "cli"]), help="By its content when absent.")
@click.option("--description", default="", help="One line for people.")
@click.option("--filename", help="For a file: the name that it is loaded under.")
@click.option("--environment-name", help="For type environment: the server that the data is for.")
@click.option("--entrypoint", help="For type cli: the program inside the folder.")
@click.option("--command-name", help="For type cli: the name that it is installed under.")
@json_option
def put(*, path: Path, id: str, kind: str | None, as_json: bool, **fields: Any) -> None:
    """Store a file or a folder as a new version of an artifact. A folder with a SKILL.md is a skill."""
    if not path.exists():
        raise NotFoundError(f"{path} does not exist")
    with opened_stores() as stores:
        stored = _put(artifacts_of(stores), path, id, kind or _kind(path), fields)
    if as_json:
        write_json(_facts(stored))
    else:
        line(f"{stored.id}: v{stored.version} ({stored.type})")


@artifact.command()
@click.argument("id", shell_complete=ARTIFACT_IDS)
@click.option("--version", type=click.IntRange(min=1), help="The newest one when absent.")
@click.option("-o", "--output", "--output-dir", "output", type=FilePath(path_type=Path), help="Write its files into this folder.")
@json_option
def get(id: str, version: int | None, output: Path | None, as_json: bool) -> None:
    """Show an artifact and its files, or write them into a folder."""
    with opened_stores() as stores:
        found = artifacts_of(stores).get(id, version)
        files = artifacts_of(stores).files(id, version)
        facts = _facts(found)
        facts["files"] = [{"path": name, "size": ref.size, "sha256": ref.sha256, "mode": f"{ref.mode:04o}"} for name, ref in files.items()]
        if output is not None:
            for name, ref in files.items():
                _write(output, name, artifacts_of(stores).read(ref), ref.mode)
            facts["output"] = str(output)
    if as_json:
        write_json({**facts, "document": found.body})
        return
    line(f"{found.id} v{found.version} ({found.type})")
    table(("FILE", "SIZE", "SHA256"), [(file["path"], file["size"], (file["sha256"] or "")[:16]) for file in facts["files"]], right=(1,))
    if output is not None:
        line(f"{counted(len(files), 'file')} written to {output}")


@artifact.command("list")
@click.option("--type", "kind", type=click.Choice(STORED_TYPES), metavar="TYPE", help="Only this type, as `put` or the list calls it.")
@page_options
def list_(*, kind: str | None, contains: str | None, limit: int, offset: int, as_json: bool) -> None:
    """List the newest version of each artifact."""
    kind = "file_artifact_universe" if kind == "folder" else kind
    list_newest(COLLECTION, lambda d: {"type": d.type}, limit=limit, offset=offset, as_json=as_json, type=kind, id_contains=contains)


@artifact.command()
@click.argument("id", nargs=-1, required=True, shell_complete=ARTIFACT_IDS)
@click.option("--version", type=click.IntRange(min=1), help="Only this version; all when absent.")
@json_option
def rm(id: tuple[str, ...], version: int | None, as_json: bool) -> None:
    """Remove artifacts. Their bytes go with the next `agent-env gc`, unless something else holds the same."""
    remove(COLLECTION, id, version, as_json=as_json)


def _put(artifacts: Artifacts, path: Path, id: str, kind: str, fields: dict[str, Any]) -> ArtifactDocument:
    if not path.is_dir() and not path.is_file():
        raise UsageError(f"{path} is neither a file nor a folder")
    if path.is_dir() and kind in {"file", "environment"}:
        raise UsageError(f"{path} is a folder; type {kind} takes a file")
    if path.is_file() and kind in {"folder", "skill", "cli"}:
        raise UsageError(f"{path} is a file; type {kind} takes a folder")
    match kind:
        case "file":
            return artifacts.put_file(id, path, filename=fields["filename"], description=fields["description"])
        case "environment":
            return artifacts.put_environment(
                id, _needed(fields, "environment_name"), path, filename=fields["filename"], description=fields["description"]
            )
        case "skill":
            return artifacts.put_skill(id, _tree(path))
        case "cli":
            entrypoint, command_name = _needed(fields, "entrypoint"), _needed(fields, "command_name")
            return artifacts.put_cli(id, _tree(path), entrypoint=entrypoint, command_name=command_name)
        case _:
            return artifacts.put_universe(id, _tree(path))


def _kind(path: Path) -> str:
    if path.is_dir():
        return "skill" if (path / "SKILL.md").is_file() else "folder"
    return "file"


def _needed(fields: dict[str, Any], name: str) -> str:
    value = fields[name]
    if not value:
        raise UsageError(f"--{name.replace('_', '-')} is needed for this type")
    return str(value)


def _tree(root: Path) -> dict[str, Path]:
    """The files of a folder, as a bundle's are found: what can't be stored is told, never left out in silence."""
    from agent_env.bundles.reading import Folder, Notes

    notes, folder = Notes(), root.resolve()
    files = Folder(folder, notes, what="folder").walk(folder)
    if notes.problems:
        raise ProblemsError([replace(problem, file=f"{root}/{problem.file}") for problem in notes.problems])
    return files


def _write(output: Path, name: str, data: bytes, mode: int) -> None:
    from agent_env.documents.artifact import path_problem

    wrong = path_problem(name)
    if wrong:
        raise UsageError(f"the artifact's file {name!r} {wrong}, so it is not written")
    path = output / name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_symlink():
            path.unlink()  # a link is replaced, never written through
        path.write_bytes(data)
        path.chmod(mode & 0o777)
    except OSError as error:
        raise UsageError(f"{path} can't be written: {error.strerror}", hint="choose another --output") from error


def _facts(document: ArtifactDocument) -> dict[str, Any]:
    return {"id": document.id, "version": document.version, "type": document.type, "digest": document.digest}
