"""The providers of the fake cloud. What it sells can run a program with a byte stream, and nothing more: places come from the helper."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from agent_env.defaults import DEFAULT_LIMITS, Limits
from agent_env.documents.network import NetworkPolicy
from agent_env.errors import (
    ConfigError,
    InfrastructureError,
    PlaceLostError,
    SandboxNotFoundError,
    TransportLostError,
    UnsupportedError,
    UserError,
)
from agent_env.places import Published, Shape
from agent_env.places.helper import HelperConfig
from agent_env.sandboxes.contract import Capabilities, Level, SandboxInfo, SandboxSpec, refusals
from agent_env.sandboxes.remote import RemoteSandbox, connect_helper, start_helper
from agent_env.waiting import deadline, shielded

CHUNK = 1 << 16
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Wire:
    """Requests to the cloud. Its errors become ours here, once."""

    def __init__(self, address: str, key: str, limits: Limits) -> None:
        self._host, _, self._port = address.rpartition(":")
        self._key = key
        self._limits = limits

    async def ask(self, do: str, **request: Any) -> Any:
        reader, writer = await self._open()
        try:
            async with deadline(self._limits.deploy_seconds, f"the cloud's answer to {do}"):
                return await self._said(reader, writer, do, request)
        finally:
            writer.close()

    async def stream(self, name: str, argv: Sequence[str]) -> Stream:
        reader, writer = await self._open()
        try:
            await self._said(reader, writer, "exec", {"name": name, "argv": list(argv)})
        except BaseException:
            writer.close()
            raise
        return Stream(reader, writer)

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        try:
            async with deadline(self._limits.connect_seconds, "connecting to the cloud"):
                return await asyncio.open_connection(self._host, int(self._port))
        except OSError as error:
            raise InfrastructureError(f"the cloud can't be reached: {error.strerror}") from error

    async def _said(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, do: str, request: Mapping[str, Any]) -> Any:
        try:
            writer.write(json.dumps({"do": do, "key": self._key, **request}).encode() + b"\n")
            await writer.drain()
            answer = json.loads(await reader.readline() or b"{}")
        except (OSError, ValueError) as error:
            raise TransportLostError(f"the cloud broke off while it was asked to {do}") from error
        match answer:
            case {"result": result}:
                return result
            case {"error": "not_found"}:
                raise LookupError(request.get("name"))
            case {"error": "unsupported", "message": message}:
                raise UnsupportedError(message)
            case {"error": "exists", "message": message}:
                raise UserError(message)
        raise InfrastructureError(f"the cloud refused to {do}: {answer.get('message', 'it gave no reason')}")


class Stream:
    """A program's input and output on one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def receive(self) -> bytes:
        try:
            return await self._reader.read(CHUNK)
        except OSError as error:
            raise TransportLostError("the cloud's stream broke") from error

    async def send(self, data: bytes) -> None:
        try:
            self._writer.write(data)
            await self._writer.drain()
        except OSError as error:
            raise TransportLostError("the cloud's stream broke") from error

    async def aclose(self) -> None:
        self._writer.close()


class RemotePaths:
    """Published ports lie under nested path prefixes of one proxy."""

    name = "remote_paths"
    tunnels = "path"

    def __init__(self, state_root: Path, *, limits: Limits = DEFAULT_LIMITS, options: Mapping[str, object] | None = None) -> None:
        del state_root  # everything that is known is known to the cloud
        given = dict(options or {})
        unknown = sorted(given.keys() - {"address", "key"})
        missing = sorted({"address", "key"} - given.keys())
        if unknown or missing:
            why = f"has no option {unknown[0]!r}" if unknown else f"needs the option {missing[0]!r}"
            raise ConfigError(f"the provider {self.name!r} {why}", hint=f"[sandbox.providers.{self.name}.config] takes address and key")
        self._wire = Wire(str(given["address"]), str(given["key"]), limits)
        self._limits = limits

    async def capabilities(self) -> Capabilities:
        told = await self._wire.ask("abilities")
        return Capabilities(
            shape=Shape.MACHINE_BACKED,
            egress=frozenset(told["egress"]),
            limits={name: Level(level) for name, level in told["limits"].items()},
            publish=True,
            own_network=told["own_network"],
            on_this_machine=False,
        )

    def problems(self, spec: SandboxSpec, capabilities: Capabilities) -> Sequence[str]:
        return list(refusals(self.name, spec, capabilities))

    async def create(self, spec: SandboxSpec) -> RemoteSandbox:
        capabilities = await self.capabilities()
        if reasons := self.problems(spec, capabilities):
            raise UnsupportedError("; ".join(reasons), concerns=spec.sandbox_id)
        network = spec.network or NetworkPolicy()
        size = {"cpu": spec.cpu, "memory_bytes": spec.memory_bytes, "disk_bytes": spec.disk_bytes, "processes": spec.processes}
        kept = {
            "agentenv.levels": json.dumps({name: level.value for name, level in capabilities.limits.items()}),
            "agentenv.network": network.model_dump_json(),
        }
        try:
            await self._wire.ask(
                "create",
                name=spec.sandbox_id,
                labels={**spec.labels, **kept},
                ports=list(spec.ports),
                env={},
                size=size,
                ttl_seconds=spec.ttl_seconds,
                network=spec.network.model_dump(mode="json") if spec.network else None,
            )
            config = HelperConfig(
                token=spec.token,
                epoch=spec.epoch,
                ttl_seconds=spec.ttl_seconds,
                env={"PATH": PATH, "LANG": "C.UTF-8", "HOME": "/root", **spec.env, **spec.secrets},
                cwd="/app",
            )
            await start_helper(self._opener(spec.sandbox_id), config, concerns=f"machine {spec.sandbox_id}", limits=self._limits)
            return await self.attach(spec.sandbox_id, epoch=spec.epoch, token=spec.token)
        except UserError:
            raise  # refused before anything was made: a machine of that name is somebody's
        except BaseException:  # a cancellation too must leave nothing behind, nor a create whose answer was lost
            with contextlib.suppress(InfrastructureError):
                what = f"removing machine {spec.sandbox_id}"
                await shielded(self.destroy(spec.sandbox_id), seconds=self._limits.cleanup_seconds, what=what)
            raise

    async def attach(self, sandbox_id: str, *, epoch: int, token: str) -> RemoteSandbox:
        try:
            machine = await self._wire.ask("get", name=sandbox_id)
        except LookupError as error:
            raise SandboxNotFoundError(f"the cloud has no machine {sandbox_id!r}", concerns=sandbox_id) from error
        if not machine["alive"]:
            raise PlaceLostError(f"the machine {sandbox_id!r} is over, or was never finished", concerns=sandbox_id)
        info = self._info(machine)
        place = await connect_helper(
            self._opener(sandbox_id), place_id=sandbox_id, labels=info.labels, token=token, epoch=epoch, limits=self._limits
        )
        levels = json.loads(machine["labels"]["agentenv.levels"])
        return RemoteSandbox(
            info=info,
            place=place,
            levels={name: Level(level) for name, level in levels.items()},
            published=Published({int(port): urls[self.tunnels] for port, urls in machine["urls"].items()}),
            network=NetworkPolicy.model_validate_json(machine["labels"]["agentenv.network"]),
        )

    async def destroy(self, sandbox_id: str) -> bool:
        try:
            return bool(await self._wire.ask("destroy", name=sandbox_id))
        except LookupError:
            return False

    async def list(self, labels: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
        for machine in await self._wire.ask("list", labels=dict(labels)):
            yield self._info(machine)

    async def aclose(self) -> None:
        """Each request has a connection of its own."""

    def _opener(self, sandbox_id: str) -> partial[Any]:
        return partial(self._wire.stream, sandbox_id)

    @staticmethod
    def _info(machine: Mapping[str, Any]) -> SandboxInfo:
        labels = {name: value for name, value in machine["labels"].items() if name not in {"agentenv.levels", "agentenv.network"}}
        return SandboxInfo(machine["name"], labels, machine["alive"], {"urls": machine["urls"]})


class RemoteSubdomains(RemotePaths):
    """Each published port is a subdomain."""

    name = "remote_subdomains"
    tunnels = "subdomain"
