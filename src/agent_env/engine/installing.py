"""Agents that are installed into a place of the run which is there already: a container of it, or its machine."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from agent_env_sdk.wire.a2a import TOKEN_VARIABLE

from agent_env import keeper
from agent_env.agents.contract import ContainerWanted
from agent_env.agents.deploy import container_called, new_instance_id, when_ready
from agent_env.agents.install import READS_CARD, Recipe, card_from, install, recipe_of
from agent_env.agents.live import RecordedAgent
from agent_env.agents.lookup import StoredAgents
from agent_env.broker.contract import MODELS_PORT
from agent_env.documents.network import NetworkMode
from agent_env.documents.records import DeployedAgent
from agent_env.documents.updates import Json
from agent_env.engine.agent_making import AgentMaking
from agent_env.errors import UserError
from agent_env.places import Command, Place
from agent_env.sandboxes.contract import LeadsToHost
from agent_env.steps.requests import InstallRequest

if TYPE_CHECKING:
    from agent_env.broker import ModelAccess
    from agent_env.documents.agent import AgentDocument
    from agent_env.engine.sandboxes import Held
    from agent_env.engine.shared import Shared
    from agent_env.steps.contract import Tell

_DOCKER = ("docker",)


@dataclass(frozen=True)
class Installing:
    """One agent on its way into a place."""

    shared: Shared
    request: InstallRequest
    attempt_id: str
    tell: Tell
    making: AgentMaking

    async def made(self, lookup: StoredAgents) -> RecordedAgent:
        """Installs it and waits for its card.

        Raises:
            UserError: It can't be installed as asked.
            UnsupportedError: It does not say how, or the place lacks what it needs.
            InfrastructureError: It did not come up.
        """
        document = await self._document(lookup)
        image = await asyncio.to_thread(lookup.image, document.docker_image_artifact)
        recipe = self._recipe(await self._card(image))
        self.tell(f"installing agent {self.request.agent_name}")
        return await self._installed(document, recipe, self._record(document, recipe))

    async def again(self, lookup: StoredAgents, record: DeployedAgent) -> None:
        """The same for one that was installed before and runs no more: it is found where it was, under the token that it had.

        Raises:
            UserError: It can't be installed as asked.
            UnsupportedError: The card that it served does not say how, or the place lacks what it needs.
            InfrastructureError: It did not come up.
        """
        document = await self._document(lookup)
        await (await self._installed(document, self._recipe(record.a2a_card or {}), record)).aclose()

    async def _document(self, lookup: StoredAgents) -> AgentDocument:
        return await asyncio.to_thread(lookup.agent, str(self.request.agent_id), self.request.agent_version)

    def _recipe(self, card: Mapping[str, Json]) -> Recipe:
        return recipe_of(card, container=self.request.container_id is not None, port=self.request.port)

    async def _installed(self, document: AgentDocument, recipe: Recipe, record: DeployedAgent) -> RecordedAgent:
        request, making = self.request, self.making
        context = await asyncio.to_thread(self._context, document)
        held = await making.hold(request.sandbox_id, request.sandbox_type)
        token = making.agent_token(str(record.instance_id), request.sandbox_id)
        access, record = await self._models(document, held, record)
        values = self._values(recipe, access)
        where = await making.agent_place(record) if recipe.inside else await held.sandbox.machine()
        if request.container_id is not None and not recipe.inside:
            await self._needs_docker(where)
        seconds = self.shared.limits.agent_ready_seconds
        await install(where, recipe, values, context, secrets={TOKEN_VARIABLE: token}, attempt=self.attempt_id, seconds=seconds)
        return await when_ready(RecordedAgent(record, making, shape=held.shape, token=token), making)

    def _context(self, document: AgentDocument) -> bytes:
        artifacts = self.shared.stores.artifacts
        found = artifacts.get(document.docker_image_artifact.id, document.docker_image_artifact.version)
        url = getattr(found.model, "build_context_object_url", None)
        if not url:
            raise UserError(
                f"agent {document.id!r} is stored as an image alone, without what it is built from, so it can't be installed",
                concerns=document.id,
                hint="store it with its Dockerfile",
            )
        return self.shared.stores.objects.read(str(url))

    async def _card(self, image: object) -> dict[str, object]:
        """The card, told by a container of the agent's image in which nothing else runs."""
        name = f"card-{container_called(self.request.agent_name)}"[:63]
        wanted = ContainerWanted(name, image, argv=(), hold=True)  # type: ignore[arg-type]
        place = await self.making.container(self.request.sandbox_id, wanted)
        try:
            done = await place.run(Command(["python3", "-c", READS_CARD], user="root", attempt=self.attempt_id))
        finally:
            rows = [row for row in self.shared.sandboxes.beside(self.request.sandbox_id) if row.name == name]
            await self.shared.sandboxes.remove_containers(rows)
        return dict(card_from(done))

    def _record(self, document: AgentDocument, recipe: Recipe) -> DeployedAgent:
        request = self.request
        at = request.ports.get(recipe.port)
        url = f"http://127.0.0.1:{at}" if at else None
        in_container = request.container_id is not None
        return DeployedAgent(
            agent_name=request.agent_name,
            api_url=url,
            sandbox_id=request.sandbox_id,
            sandbox_type=request.sandbox_type,
            a2a_url=url,
            instance_id=new_instance_id(document.id),
            on_host=not in_container,
            installed_container=request.container_name,
            container_id=request.container_id,
            placement="in_container" if in_container else "on_machine",
            a2a_port=recipe.port,
            agent_id=document.id,
            agent_version=document.version,
            default_model=document.default_model,
            workspace_dir=request.workspace_dir,
        )

    async def _models(self, document: AgentDocument, held: Held, record: DeployedAgent) -> tuple[ModelAccess | None, DeployedAgent]:
        """What it asks models by, with a way there from the place that it is installed in."""
        on_machine = self.request.container_id is None
        if not document.takes_credentials or (on_machine and not isinstance(held.sandbox, LeadsToHost)):
            return None, record
        shared = on_machine and not (await held.provider.capabilities()).own_network and held.sandbox.network.mode is NetworkMode.ALLOW_ALL
        access = await self.shared.models().access(self.request.agent_name, model=document.default_model, shared_loopback=shared)
        if access is not None:
            record = record.model_copy(update={"default_model": access.model})
        if access is None or not access.brokered:
            return access, record
        record = record.model_copy(update={"brokered": True, "shared_loopback": shared})
        if not shared:
            await self.making.lead_agent(record, {MODELS_PORT: keeper.MODELS})
        return access, record

    def _values(self, recipe: Recipe, access: ModelAccess | None) -> dict[str, str]:
        request = self.request
        return {
            "agent_name": request.agent_name,
            "a2a_port": str(recipe.port),
            "workspace_dir": request.workspace_dir or recipe.workdir or "/tmp",
            "host_workdir": request.workspace_dir or recipe.workdir or "/tmp",
            "host_user": recipe.user or "root",
            "trust_env": "",
            **({"container": f"{request.container_name}-{request.sandbox_id}"} if request.container_name else {}),
            "litellm_base_url": access.base_url if access else "",
            "litellm_api_key": access.token if access else "",
            "litellm_extra_headers": json.dumps(dict(access.headers)) if access and access.headers else "",
        }

    async def _needs_docker(self, machine: Place) -> None:
        done = await machine.run(Command(["/bin/sh", "-c", "command -v docker"], attempt=self.attempt_id))
        if not done.ok:
            raise UserError(
                f"agent {self.request.agent_name!r} is installed into a container by commands of the machine beside it, which need "
                "a docker client that the machine does not have",
                concerns=self.request.agent_name,
                hint="an agent that says install_commands_inside needs none; or install it on the machine (no container_name)",
            )


async def installed_again(shared: Shared, record: DeployedAgent, attempt_id: str, tell: Tell, making: AgentMaking) -> None:
    """Installs an agent once more where it was; see `Installing.again`."""
    request = InstallRequest(
        agent_name=record.agent_name,
        sandbox_id=str(record.sandbox_id),
        sandbox_type=record.sandbox_type,
        agent_id=record.agent_id,
        agent_version=record.agent_version,
        container_id=record.container_id,
        container_name=record.installed_container,
        port=record.a2a_port,
        workspace_dir=record.workspace_dir,
    )
    with tempfile.TemporaryDirectory() as scratch:
        lookup = StoredAgents(shared.stores.artifacts, Path(scratch), limits=shared.limits)
        await Installing(shared, request, attempt_id, tell, making).again(lookup, record)
