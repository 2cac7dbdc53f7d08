"""A run's sandbox in words: what its provider is asked for, its row in the journal, its record in the context, its note in the run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta

from agent_env.clock import Clock, timestamp
from agent_env.defaults import Limits
from agent_env.documents.records import DeployedSandbox
from agent_env.documents.updates import Json
from agent_env.engine.installation import Installation
from agent_env.sandboxes.contract import Sandbox, SandboxSpec
from agent_env.steps.contract import SandboxRequest
from agent_env.stores.records import Lease, Resource, ResourceRow

RESOURCE_KIND = "sandbox"
KEEPING = "runs remove their sandboxes when they end; keep them with --keep"
"""What helps whoever comes too late for a sandbox."""
_NOTED = ("mode", "levels", "network", "passed_over")
CONTAINER_ID = "container_id"
"""Fact of a sandbox that is a container beside its machine's shell: the engine's id."""
IMAGE = "image"
"""Fact of what is made of an image: its `name` as it was asked for, and the `id` of its content."""
SECRETS = "secrets"
"""Fact of what was told something in confidence: variable → the reference that leads to its value, never the value."""
LEADS = "leads"
"""Fact of a container beside a machine: port of its loopback → port of this machine's."""
EPOCH_BASE = "epoch_base"
"""Fact of an adopted sandbox: epochs of its earlier runs, so that its places see epochs that only grow."""


def spec_of(
    request: SandboxRequest, sandbox_id: str, lease: Lease, *, installation: Installation, limits: Limits, clock: Clock
) -> SandboxSpec:
    """What a provider is asked to make for a run."""
    labels = installation.labels(lease.run_id, sandbox_id, epoch=lease.epoch, ttl_seconds=request.ttl_seconds, clock=clock)
    return SandboxSpec(
        sandbox_id=sandbox_id,
        mode=request.mode,
        image=request.image,
        cpu=request.cpu,
        memory_bytes=request.memory_bytes,
        disk_bytes=request.disk_bytes,
        processes=limits.sandbox_processes,
        ttl_seconds=request.ttl_seconds,
        ports=tuple(request.exposed_ports) if request.port is None else (*request.exposed_ports, request.port),
        env=request.env,
        secrets=request.secrets,
        network=request.network,
        labels={**{f"agentenv.attribution.{key}": value for key, value in request.attribution.items()}, **labels},
        epoch=lease.epoch,
        token=installation.token(lease.run_id, sandbox_id),
        restart=request.restart,
        leads=request.leads,
    )


def facts_of(request: SandboxRequest, sandbox: Sandbox, known: Mapping[str, Json]) -> dict[str, Json]:
    """What the journal keeps of a sandbox that was made, beside what was known before."""
    return {
        **sandbox.info.facts,
        **known,
        **({SECRETS: dict(request.references)} if request.references else {}),
        "levels": {name: str(level) for name, level in sandbox.levels.items()},
        "network": str(sandbox.network.mode),
    }


def row_of(resource: Resource, facts: Mapping[str, Json], lease: Lease, clock: Clock) -> ResourceRow:
    """The journal's row of what has just been made, as a load would give it."""
    now = timestamp(clock.now())
    return ResourceRow(
        id=resource.id,
        run_id=lease.run_id,
        attempt_id=resource.attempt_id,
        epoch=lease.epoch,
        kind=resource.kind,
        provider=resource.provider,
        name=resource.name,
        state="live",
        labels=resource.labels,
        facts=facts,
        expires_at=resource.expires_at,
        created_at=now,
        changed_at=now,
    )


def record_of(request: SandboxRequest, row: ResourceRow, sandbox: Sandbox, clock: Clock) -> DeployedSandbox:
    """The record that the context keeps of a sandbox that was made just now."""
    now, container = clock.now(), row.facts.get(CONTAINER_ID)
    tunnels = {str(port): url for port, url in sandbox.published.tunnels.items()}
    return DeployedSandbox(
        sandbox_name=request.sandbox_name,
        sandbox_id=row.id,
        sandbox_mode=request.mode,
        sandbox_type=row.provider,
        tunnel_urls=tunnels or None,
        created_at_utc=timestamp(now),
        expires_at_utc=timestamp(now + timedelta(seconds=request.ttl_seconds)),
        network_policy=sandbox.network.model_dump(mode="json"),
        container_id=str(container) if container else None,
        placement=request.mode,
    )


def notes_of(rows: Iterable[ResourceRow]) -> dict[str, Json]:
    """What the run's record says of its sandboxes: provider, how each limit holds, and the network that is in force."""
    return {
        row.name: {"sandbox_id": row.id, "provider": row.provider, **{key: row.facts[key] for key in _NOTED if key in row.facts}}
        for row in rows
    }
