"""`snapshot/v1`: a conversation and the workspace as two opaque objects, loaded whole or not at all."""

from __future__ import annotations

import asyncio
import io
import json
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pydantic import ValidationError

from agent_env_sdk.wire.agent_bodies import Body, SnapshotLoad, SnapshotSave
from agent_env_sdk.wire.errors import AgentEnvError

from .registrations import InvalidFieldsError, Registrations
from .trajectories import Trajectories
from .unpacking import unpack

if TYPE_CHECKING:
    from .author import Agent

B = TypeVar("B", bound=Body)
_FORMAT: Final = "agentenv-sdk-conversation/1"
_ASIDE: Final = ".agent-env-loading-"


class Snapshots:
    """Saves and loads.

    Args:
        agent: Whose conversations they are.
        workspace: The folder that is kept with them.
        registrations: Where session references are.
        trajectories: Where the events are.
    """

    def __init__(self, agent: Agent, workspace: Path, registrations: Registrations, trajectories: Trajectories) -> None:
        self._agent, self._workspace = agent, workspace
        self._registrations, self._trajectories = registrations, trajectories
        self._one_at_a_time = asyncio.Lock()

    async def save(self, sent: Mapping[str, Any]) -> dict[str, Any]:
        """Uploads a conversation and, if asked, the workspace.

        Raises:
            AgentEnvError: The fields don't fit, the conversation isn't known (404), or an upload failed.
        """
        # Imported where it is used: it brings the environment side with it, which an agent may do without.
        from agent_env_sdk.environment.transfers import upload

        body = _read(SnapshotSave, sent)
        entries = self._trajectories.tasks.of_context(body.context_id)
        if not entries:
            raise AgentEnvError("not_found", "there is no such conversation", status=404)
        objects: dict[str, Any] = {}
        async with self._one_at_a_time:
            with tempfile.TemporaryDirectory() as folder:
                conversation = Path(folder) / "conversation.tar.gz"
                about = {"format": _FORMAT, "context_id": body.context_id, "session_ref": self._registrations.session(body.context_id)}
                saved = await self._agent.save_context(body.context_id)
                events = Path(folder) / "events.json"
                with events.open("wb") as file:
                    self._trajectories.write(entries, file)
                await asyncio.to_thread(_pack_conversation, conversation, about, saved, events)
                objects["trajectory"] = await upload(body.objects.trajectory, conversation)
                if body.objects.workspace is not None:
                    workspace = Path(folder) / "workspace.tar.gz"
                    await asyncio.to_thread(_pack, self._workspace, workspace)
                    objects["workspace"] = await upload(body.objects.workspace, workspace)
        answered = {name: each.model_dump(mode="json", exclude_none=True) for name, each in objects.items()}
        return {"context_id": body.context_id, "objects": answered}

    async def load(self, sent: Mapping[str, Any]) -> dict[str, Any]:
        """Takes up a saved conversation; the workspace is unpacked beside the present one, and then takes its place.

        Raises:
            AgentEnvError: The fields don't fit, a download failed, or an object isn't one that `save` made.
        """
        from agent_env_sdk.environment.transfers import download

        body = _read(SnapshotLoad, sent)
        async with self._one_at_a_time:
            with tempfile.TemporaryDirectory() as folder:
                conversation = Path(folder) / "conversation.tar.gz"
                await download(body.objects.trajectory, conversation)
                about, saved = await _unpacked(lambda: _unpack_conversation(conversation))
                context_id = body.target_context_id or str(about["context_id"])
                if body.objects.workspace is not None:
                    workspace = Path(folder) / "workspace.tar.gz"
                    await download(body.objects.workspace, workspace)
                    await _unpacked(lambda: _replace(self._workspace, workspace))
                await self._agent.load_context(context_id, saved)
                if about.get("session_ref") is not None:
                    self._registrations.set_session(context_id, str(about["session_ref"]))
        return {"context_id": context_id}


T = TypeVar("T")


async def _unpacked(unpack: Callable[[], T]) -> T:
    try:
        return await asyncio.to_thread(unpack)
    except (tarfile.TarError, EOFError, KeyError, ValueError, OSError) as error:
        raise AgentEnvError("invalid_snapshot", f"the snapshot can't be unpacked: {type(error).__name__}", status=422) from error


def _read(model: type[B], sent: Mapping[str, Any]) -> B:
    try:
        return model.model_validate(sent)
    except ValidationError as error:
        raise InvalidFieldsError(error) from None


def _pack_conversation(target: Path, about: Mapping[str, Any], saved: bytes, events: Path) -> None:
    with tarfile.open(target, "w:gz", compresslevel=1) as archive:
        for name, content in (("about.json", json.dumps(about).encode()), ("context", saved)):
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
        archive.add(events, "events.json")


def _unpack_conversation(source: Path) -> tuple[dict[str, Any], bytes]:
    with tarfile.open(source, "r:gz") as archive:
        about, saved = (archive.extractfile(name) for name in ("about.json", "context"))
        if about is None or saved is None:
            raise ValueError("not a conversation")
        value = json.loads(about.read())
        if not isinstance(value, dict) or value.get("format") != _FORMAT:
            raise ValueError("not a conversation of this format")
        return value, saved.read()


def _pack(folder: Path, target: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(target, "w:gz", compresslevel=1) as archive:
        archive.add(folder, ".", filter=lambda entry: None if f"/{_ASIDE}" in f"/{entry.name}" else entry)


def _replace(folder: Path, source: Path) -> None:
    """Puts what the archive holds in the folder's place; the folder itself stays, since it may be a mount.

    What is unpacked lies within the folder meanwhile: the one above it may belong to somebody else.
    """
    folder.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=_ASIDE, dir=folder))
    try:
        fresh, old = aside / "new", aside / "old"
        with tarfile.open(source, "r:gz") as archive:
            unpack(archive, fresh)
        old.mkdir()
        _move(folder, old)
        try:
            _move(fresh, folder)
        except OSError:  # such as a full disk: then the folder is as it was
            shutil.rmtree(fresh, ignore_errors=True)
            for entry in _entries(folder):
                shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
            _move(old, folder)
            raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _move(source: Path, target: Path) -> None:
    for entry in _entries(source):
        shutil.move(entry, target / entry.name)


def _entries(folder: Path) -> list[Path]:
    """What is in a folder, without what is unpacked into it."""
    return [entry for entry in folder.iterdir() if not entry.name.startswith(_ASIDE)]
