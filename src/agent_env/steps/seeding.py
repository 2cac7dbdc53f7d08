"""Seed data of environments: which files an artifact has for which server, and putting them there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from agent_env.documents.updates import Json
from agent_env.places import Upload

if TYPE_CHECKING:
    from agent_env.artifacts import ArtifactDocument, Artifacts
    from agent_env.environments import LiveEnvironment
    from agent_env.environments.load import LoadReport
    from agent_env.environments.transfers import Seed
    from agent_env.steps.contract import Plan, Run

SEED_TYPES = frozenset({"environment", "environment_universe"})
METADATA = "metadata"
LOADED = "loaded_environment_universes"
"""Where the run's record keeps what was loaded into environments."""


def seeds_of(artifacts: Artifacts, document: ArtifactDocument) -> list[Seed]:
    """The seed files of an artifact, one for each server that it is for."""
    from agent_env.environments.transfers import Seed

    files = artifacts.files(document.id, document.version)
    if document.type == "environment":
        name, ref = next(iter(files.items()))
        return [Seed(str(document.body["environment_name"]), PurePosixPath(name).name, artifacts.path(ref))]
    return [
        Seed(str(PurePosixPath(name).parent), PurePosixPath(name).name, artifacts.path(ref))
        for name, ref in files.items()
        if not _is_metadata(name)
    ]


def _is_metadata(name: str) -> bool:
    return name.startswith(f"{METADATA}/")


async def load_artifact_into(run: Run, live: LiveEnvironment, document: ArtifactDocument) -> dict[str, Json]:
    """Loads an artifact's seed data, all of it or none, and puts a universe's further files beside it. Returns what the record keeps.

    Raises:
        PlacementError: It is for a server that the environment does not have.
        EnvironmentFailedError: A server did not take its data; all hold again what they held before, or the message says which don't.
    """
    from agent_env.environments.load import load_seeds

    await load_seeds(live, seeds_of(run.artifacts, document), tell=run.progress)
    record: dict[str, Json] = {
        "id": document.id,
        "version": document.version,
        "restored_from_snapshot": False,
        "env_id": live.record.env_id,
        "env_instance_id": live.record.instance_id,
    }
    files = {name: ref for name, ref in run.artifacts.files(document.id, document.version).items() if _is_metadata(name)}
    if document.type == "environment_universe" and files:
        folder = PurePosixPath("/tmp") / f"{METADATA}-{run.attempt_id.removeprefix('att-')[:8]}"
        paths = {name.removeprefix(f"{METADATA}/"): folder / name.removeprefix(f"{METADATA}/") for name in files}
        uploads = [Upload(path, run.artifacts.path(files[f"{METADATA}/{name}"]), 0o644) for name, path in paths.items()]
        await (await live.machine()).put(uploads)
        record["metadata_filepaths"] = {str(PurePosixPath(name).parent): str(path) for name, path in paths.items()}
    return record


async def load_again(run: Run, live: LiveEnvironment) -> LoadReport:
    """What this run has loaded into the environment, once more: for each server what it was given last."""
    from agent_env.environments.load import load_seeds

    loads: Sequence[Mapping[str, Json]] = run.metadata.get(LOADED) or ()
    latest: dict[str, Seed] = {}
    for load in loads:
        if load.get("env_instance_id") == live.record.instance_id:
            document = run.artifacts.get(str(load["id"]), load.get("version"))
            latest |= {seed.environment_name: seed for seed in seeds_of(run.artifacts, document)}
    names = {part.name for part in live.parts.values()}
    return await load_seeds(live, [seed for name, seed in latest.items() if name in names], tell=run.progress)


def server_names(plan: Plan, env_id: str) -> set[str] | None:
    """The names of an environment's servers, as far as documents tell; None where they don't."""
    document = plan.environment(env_id)
    if document is None:
        return None
    if document.get("type") != "multi":
        name = document.get("environment_name") or document.get("service_name")
        return {str(name)} if name else None
    found: set[str] = set()
    for ref in (*(document.get("mcp_server_envs") or ()), *(document.get("website_envs") or ())):
        part = server_names(plan, str(ref.get("id")))
        if part is None:
            return None
        found |= part
    return found


def names_in(type: str, document: Mapping[str, Json], files: Iterable[str]) -> set[str]:
    """The servers that an artifact's seed data is for."""
    if type == "environment":
        name = document.get("environment_name") or document.get("service_name")
        return {str(name)} if name else set()
    return {str(PurePosixPath(name).parent) for name in files if not _is_metadata(name)}
