"""What is written down of a sandbox that is a container: its facts, its work folder, and the marker there that other tools read."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_env.documents.network import NetworkMode, NetworkPolicy
from agent_env.errors import InfrastructureError
from agent_env.sandboxes.confined.processes import Identity, boot_id
from agent_env.sandboxes.confined.publish import write_port_map
from agent_env.sandboxes.confined.records import CONTAINER, Facts, Records, labels_file, make_private, new_work_dir, read_labels
from agent_env.sandboxes.contract import Level, SandboxSpec
from agent_env.sandboxes.local.container_sandbox import CONTAINER_MARKER, container_name
from agent_env.sandboxes.local.engines import record_of

if TYPE_CHECKING:
    from agent_env.containers import Engine

KEEPER, BRIDGE, RELAYED, NONE = "keeper", "bridge", "relayed", "none"
"""How a container's network is done: the keeper's relay alone, the engine's bridge, the bridge of an engine whose published ports don't
answer here (so that the keeper carries them), or not at all."""
ON_BRIDGE = frozenset({BRIDGE, RELAYED})
_MOST_MARKER_BYTES = 256


def first_facts(spec: SandboxSpec, engine: Engine, levels: Mapping[str, Level], *, work_root: Path) -> Facts:
    """Of one that is about to be made."""
    maker, policy = Identity.of(os.getpid()), spec.network or NetworkPolicy()
    bridge = BRIDGE if engine.endpoint.publishes_here else RELAYED
    how = {NetworkMode.NONE: NONE, NetworkMode.ALLOWLIST: KEEPER}.get(spec.network_mode, bridge)
    return Facts(
        sandbox_id=spec.sandbox_id,
        work_dir=str(new_work_dir(work_root, spec.sandbox_id)),
        labels=dict(spec.labels),
        boot=boot_id(),
        maker=maker.dump() if maker else {},
        confiner=CONTAINER,
        network=_network_facts(policy, spec.network_mode, how, demanded=spec.network is not None),
        levels={name: level.value for name, level in levels.items()},
        limits={"memory": spec.memory_bytes, "processes": spec.processes, "cpu": spec.cpu, "disk": spec.disk_bytes},
        ttl_seconds=spec.ttl_seconds,
        engine=record_of(engine),
        container_name=container_name(spec.sandbox_id),
    )


def adopted_facts(
    sandbox_id: str, folder: Path, engine: Engine, container_id: str, *, known: Mapping[str, str], written: Mapping[str, object]
) -> Facts:
    """Of one that only its work folder told of.

    Args:
        sandbox_id: The sandbox.
        folder: Its work folder.
        engine: Where its container is.
        container_id: The container.
        known: Labels that are taken where nothing says otherwise.
        written: The container's own labels.
    """
    labels = {**read_labels(folder), **written}
    ours = {name: str(value) for name, value in labels.items() if name.startswith("agentenv.") and name != "agentenv.told"}
    return Facts(
        sandbox_id=sandbox_id,
        work_dir=str(folder),
        labels={**known, **ours},
        boot=boot_id(),
        phase="running",
        confiner=CONTAINER,
        network=_network_facts(NetworkPolicy(), NetworkMode.ALLOW_ALL, BRIDGE, demanded=False),
        engine=record_of(engine),
        container_id=container_id,
        container_name=container_name(sandbox_id),
    )


def prepare(facts: Facts, spec: SandboxSpec) -> None:
    """The work folder, with what tells whose it is should the record be lost."""
    work_dir = Path(facts.work_dir)
    try:
        make_private(work_dir.parent)
        work_dir.mkdir(mode=0o700)
        name, text = labels_file(spec.sandbox_id, spec.labels)
        (work_dir / name).parent.mkdir(mode=0o700)
        (work_dir / name).write_text(text)
    except OSError as error:
        raise InfrastructureError(f"can't prepare {error.filename or work_dir}: {error.strerror}", concerns=spec.sandbox_id) from error


def note(records: Records, facts: Facts, ports: dict[int, int]) -> None:
    """The record first: it is the truth. Marker and map are for other tools."""
    records.write(facts)
    work_dir = Path(facts.work_dir)
    try:
        (work_dir / CONTAINER_MARKER).write_text(str(facts.container_name))
        write_port_map(work_dir, ports)
    except OSError as error:
        raise InfrastructureError(f"can't write into {work_dir}: {error.strerror}", concerns=facts.sandbox_id) from error


def marker_of(folder: Path) -> str | None:
    """The container that a work folder's marker names. What others may have written there is not trusted further than that."""
    try:
        handle = os.open(folder / CONTAINER_MARKER, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        with open(handle, "rb") as file:
            return file.read(_MOST_MARKER_BYTES).decode().strip()
    except (OSError, UnicodeDecodeError):
        return None


def _network_facts(policy: NetworkPolicy, mode: NetworkMode, how: str, *, demanded: bool) -> dict[str, Any]:
    return {"mode": str(mode), "how": how, "demanded": demanded, "policy": policy.model_dump(mode="json")}
