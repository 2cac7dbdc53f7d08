"""The cloud: a process of its own. `python -m agentenv_fake_cloud.cloud FOLDER` prints one JSON line with its addresses and serves.

Its wire: a TCP connection carries one JSON line each way; after `exec` the connection is the program's input and output, raw. Machines
are confined machine places of this machine that share nothing with whoever asks. Published ports lie behind one proxy, under nested path
prefixes (`/m/<name>`, `/m/<name>/<port>`) or one subdomain a port (`<port>-<name>.localhost`), which no machine can reach.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import re
import secrets
import signal
import sys
from pathlib import Path
from typing import Any

from agent_env.containers.endpoint import find_endpoint
from agent_env.documents.network import NetworkPolicy
from agent_env.errors import AgentEnvError
from agent_env.places import Command
from agent_env.sandboxes.contract import SandboxSpec
from agent_env.sandboxes.local.provider import LocalProvider

CHUNK = 1 << 16
HEAD_BYTES = 1 << 14


class ExistsError(AgentEnvError):
    code = "exists"


@dataclasses.dataclass
class Machine:
    name: str
    labels: dict[str, str]
    ports: list[int]
    sandbox: Any = None
    created: bool = False
    alive: bool = True
    served: dict[int, int] = dataclasses.field(default_factory=dict)
    """Ports of containers beside it, and where this machine has them."""


class Cloud:
    def __init__(self, folder: Path, key: str) -> None:
        self.provider = LocalProvider(folder / "state", environ={**os.environ, "AGENT_ENV_LOCAL_SANDBOX_DIR": str(folder / "machines")})
        self.key = key
        self.machines: dict[str, Machine] = {}
        self.proxy = 0
        self.engines = 0

    # the wire

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, ValueError):
            request = json.loads(await reader.readline())
            if request.get("key") != self.key:
                await self.answer(writer, error="forbidden", message="the key is wrong")
            else:
                await self.act(request, reader, writer)
        writer.close()

    async def act(self, request: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        do = {"create": self.create, "get": self.get, "list": self.list, "destroy": self.destroy, "abilities": self.abilities}
        do |= {"engine": self.engine, "note": self.note}
        try:
            if request["do"] == "exec":
                await self.exec(request, reader, writer)
            else:
                await self.answer(writer, result=await do[request["do"]](request))
        except KeyError as error:
            await self.answer(writer, error="not_found", message=str(error))
        except AgentEnvError as error:
            await self.answer(writer, error=error.code, message=str(error))

    @staticmethod
    async def answer(writer: asyncio.StreamWriter, **reply: Any) -> None:
        writer.write(json.dumps(reply).encode() + b"\n")
        await writer.drain()

    # machines

    async def abilities(self, request: dict[str, Any]) -> dict[str, Any]:
        known = await self.provider.capabilities()
        limits = {name: level.value for name, level in known.limits.items()}
        return {"egress": sorted(known.egress), "limits": limits, "own_network": known.own_network}

    async def create(self, request: dict[str, Any]) -> dict[str, Any]:
        name = request["name"]
        if name in self.machines:
            raise ExistsError(f"there is a machine {name!r} already")
        machine = self.machines[name] = Machine(name, request["labels"], request["ports"])
        try:
            machine.sandbox = await self.provider.create(
                SandboxSpec(
                    name,
                    **request["size"],
                    ttl_seconds=request["ttl_seconds"],
                    ports=request["ports"],
                    env=request["env"],
                    network=NetworkPolicy.model_validate(request["network"]) if request["network"] else None,
                    token=secrets.token_hex(8),
                )
            )
        except BaseException:
            self.machines.pop(name, None)
            raise
        if name not in self.machines:  # it was given up meanwhile
            await machine.sandbox.aclose()
            await self.provider.destroy(name)
        machine.created = True
        return self.told(machine)

    async def get(self, request: dict[str, Any]) -> dict[str, Any]:
        return self.told(self.machines[request["name"]])

    async def list(self, request: dict[str, Any]) -> list[dict[str, Any]]:
        wanted = request["labels"].items()
        return [self.told(machine) for machine in self.machines.values() if wanted <= machine.labels.items()]

    async def engine(self, request: dict[str, Any]) -> str:
        return f"tcp://127.0.0.1:{self.engines}"

    async def note(self, request: dict[str, Any]) -> bool:
        machine = self.machines[request["name"]]
        machine.labels.update(request["labels"])
        machine.served.update({int(port): at for port, at in request["served"].items()})
        return True

    async def destroy(self, request: dict[str, Any]) -> bool:
        machine = self.machines.pop(request["name"])
        if machine.sandbox is not None:
            await machine.sandbox.aclose()
        await self.provider.destroy(machine.name)
        return True

    def told(self, machine: Machine) -> dict[str, Any]:
        alive = machine.created and any(info.alive for info in [machine.sandbox.info])
        urls = {}
        for index, port in enumerate(machine.ports):
            prefix = f"/m/{machine.name}" if index == 0 else f"/m/{machine.name}/{port}"
            urls[str(port)] = {
                "path": f"http://127.0.0.1:{self.proxy}{prefix}",
                "subdomain": f"http://{port}-{machine.name}.localhost:{self.proxy}",
            }
        return {"name": machine.name, "labels": machine.labels, "created": machine.created, "alive": alive, "urls": urls}

    async def exec(self, request: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        machine = self.machines[request["name"]]
        place = await machine.sandbox.machine()
        process = await place.start(Command(request["argv"], timeout_seconds=24 * 3600.0))
        await self.answer(writer, result=True)

        async def feed() -> None:
            while data := await reader.read(CHUNK):
                await process.write(data)
            await process.close_stdin()

        feeding = asyncio.ensure_future(feed())
        try:
            async for stream, piece in process.output():
                if stream == 1:
                    writer.write(piece)
                    await writer.drain()
        finally:
            feeding.cancel()
            await process.aclose()

    # the proxy

    async def forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            found = self.route(head)
            if found is None:
                writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            else:
                await self.relay(*found, reader, writer)
        writer.close()

    def route(self, head: str) -> tuple[int, str] | None:
        """The port of this machine behind a request, and the request as the machine's server sees it."""
        line, _, rest = head.partition("\r\n")
        method, target, version = line.split(" ", 2)
        host = re.search(r"^host: *(\d+)-([\w-]+)\.localhost", rest, re.IGNORECASE | re.MULTILINE)
        if host:
            name, port, path = host[2], int(host[1]), target
        else:
            parts = re.match(r"/m/([\w-]+)(?:/(\d+))?(.*)", target)
            if not parts or parts[1] not in self.machines:
                return None
            name, port, path = parts[1], int(parts[2] or 0), parts[3]
            if port not in self.machines[name].ports[1:]:
                port, path = (self.machines[name].ports or [0])[0], target[len(f"/m/{name}") :]
        machine = self.machines.get(name)
        outside = machine and machine.created and (machine.served.get(port) or machine.sandbox.published.host_ports.get(port))
        if not outside:
            return None
        return outside, f"{method} {path if path.startswith('/') else '/' + path} {version}\r\nConnection: close\r\n{rest}"

    async def relay(self, port: int, request: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            back_reader, back_writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            writer.write(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            return
        back_writer.write(request.encode("latin-1"))
        while data := await back_reader.read(CHUNK):
            writer.write(data)
            await writer.drain()
        back_writer.close()


async def to_engine(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """The wire to the engine that stands beside every machine: this machine's own."""
    with contextlib.suppress(OSError, AgentEnvError):
        back, far = await asyncio.open_unix_connection(str(find_endpoint(os.environ, Path.home()).socket))

        async def carry(source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError):
                while piece := await source.read(CHUNK):
                    to.write(piece)
                    await to.drain()
                to.write_eof()

        await asyncio.gather(carry(reader, far), carry(back, writer))
        far.close()
    writer.close()


async def main(folder: Path) -> None:
    cloud = Cloud(folder, secrets.token_hex(8))
    wire = await asyncio.start_server(cloud.serve, "127.0.0.1", 0)
    proxy = await asyncio.start_server(cloud.forward, "127.0.0.1", 0, limit=HEAD_BYTES)
    engines = await asyncio.start_server(to_engine, "127.0.0.1", 0)
    cloud.engines = engines.sockets[0].getsockname()[1]
    cloud.proxy = proxy.sockets[0].getsockname()[1]
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    sys.stdout.write(json.dumps({"address": f"127.0.0.1:{wire.sockets[0].getsockname()[1]}", "key": cloud.key}) + "\n")
    sys.stdout.flush()
    await stopped.wait()
    for name in list(cloud.machines):
        with contextlib.suppress(KeyError):
            await cloud.destroy({"name": name})


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
