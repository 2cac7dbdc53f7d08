"""The provider `local`: sandboxes on this machine, confined without a container engine where that can be, else in a container of one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, TypeVar

from agent_env import host, keeper
from agent_env.containers.endpoint import NO_ENGINE_HINT
from agent_env.documents.network import NetworkMode
from agent_env.errors import InfrastructureError, SandboxNotFoundError, UnsupportedError
from agent_env.places import Shape
from agent_env.sandboxes.confined import limits as control
from agent_env.sandboxes.confined.network import why_shared
from agent_env.sandboxes.confined.records import CONTAINER, Facts, work_dirs
from agent_env.sandboxes.confined.sandbox import info_of
from agent_env.sandboxes.contract import Capabilities, SandboxInfo, SandboxSpec
from agent_env.sandboxes.local.confined_machines import ConfinedMachines
from agent_env.sandboxes.local.engines import Engines, Problem, record_of
from agent_env.sandboxes.local.sandbox import LocalSandbox
from agent_env.stores.installation import home_of

if TYPE_CHECKING:
    from agent_env.images import BuildRequest, OnProgress
    from agent_env.sandboxes.local.container_machine import MachineContainers
    from agent_env.sandboxes.local.container_sandbox import ContainerSandbox, Family
    from agent_env.sandboxes.local.containers import Containers

SANDBOX, HOME = "agentenv.sandbox", "agentenv.home"
AnyContainers = TypeVar("AnyContainers", bound="Containers")


class LocalProvider(ConfinedMachines):
    """Makes, finds and removes confined machine places on this machine."""

    name = "local"

    _no_engine: Problem | None = None

    @cached_property
    def _engines(self) -> Engines:
        return Engines(self._environ, self._limits)

    @cached_property
    def _containers(self) -> Containers:
        from agent_env.sandboxes.local.containers import Containers

        return self._on_engine(Containers)

    @cached_property
    def _machines(self) -> MachineContainers:
        from agent_env.sandboxes.local.container_machine import MachineContainers

        return self._on_engine(partial(MachineContainers, image=self._options.machine_image))

    def _on_engine(self, kind: Callable[..., AnyContainers]) -> AnyContainers:
        roots = self._state_root, self._records, self._engines, self._limits, lambda: self._work_root
        return kind(*roots, self._environ, self._keyring, self._options.allow_private)

    async def capabilities(self) -> Capabilities:
        """What it can do here."""
        self._no_engine = await self._engines.problem()
        if self._in_container() and self._no_engine is None:
            return await self._machines.capabilities()
        return Capabilities(
            shape=Shape.MACHINE_BACKED,
            egress=frozenset(NetworkMode),
            limits=self._levels(),
            containers=self._no_engine is None,
            publish=True,
            own_network=not why_shared(self._options.network, self.machine),
            notes=[*self._notes(), *([f"no containers: {self._no_engine}"] if self._no_engine else [])],
        )

    def problems(self, spec: SandboxSpec, capabilities: Capabilities) -> Sequence[str]:
        """Why this spec can't be made here."""
        found = []
        if spec.mode not in capabilities.modes:
            why = f" ({self._no_engine}; {self._no_engine.hint})" if self._no_engine else ""
            found.append(f"the provider {self.name!r} runs no containers here, so sandbox_mode {spec.mode!r} needs another{why}")
        mode = spec.network_mode
        if mode not in capabilities.egress:
            able = ", ".join(sorted(capabilities.egress))
            found.append(f"the provider {self.name!r} can't hold a network policy of mode {mode.value!r}; it can do {able}")
        if spec.network is not None and mode is NetworkMode.ALLOWLIST:
            found += keeper.policy_problems(spec.network.allow_hosts, spec.network.allow_cidrs)
        if spec.mode != "container" and (why_not := self._no_machine()):
            found.append(why_not)
        return found

    def away(self, spec: SandboxSpec) -> InfrastructureError | None:
        """The container engine, where this spec needs one and it does not answer now. See `contract.MayBeAway`."""
        isolation = self._options.isolation
        played = isolation == "container" or (isolation == "auto" and not self._can_confine())
        return self._engines.away if played or spec.mode == "container" else None

    def remember(self, of: str, secrets: Mapping[str, str]) -> None:
        """What a container has to be told again should somebody start it again. See `contract.TakesSecrets`."""
        self._engines.told[of] = secrets

    async def prepare_image(self, name: str, tell: OnProgress) -> None:
        """Has an image present before a sandbox is made of it. See `contract.PreparesImages`."""
        await self._containers.prepare_image(name, tell)

    async def build_image(self, request: BuildRequest, tell: OnProgress) -> None:
        """Builds an image that will run beside a machine. See `contract.BuildsImages`."""
        await self._containers.build_image(request, tell)

    async def sweep(self) -> None:
        """Removes what its sandboxes share and none uses any more. See `contract.Sweeps`."""
        await self._containers.sweep()

    async def create(self, spec: SandboxSpec) -> LocalSandbox | ContainerSandbox:
        """Makes the sandbox; a failure or a cancellation leaves nothing behind.

        Raises:
            UnsupportedError: This machine or provider can't make it.
            UserError: A sandbox of that id exists.
            InfrastructureError: It could not be started.
            DeadlineError: It did not start in time.
        """
        reasons = self.problems(spec, await self.capabilities())
        if reasons:
            raise self.away(spec) or UnsupportedError("; ".join(reasons), concerns=spec.sandbox_id)
        undone = partial(self._life.undo, self.destroy)
        if spec.mode == "container" or self._in_container():
            return await (self._containers if spec.mode == "container" else self._machines).create(spec, undone)
        spec = control.bounded(self.machine, spec)
        facts = self._first_facts(spec)
        self._records.open(facts)
        async with contextlib.AsyncExitStack() as undo:
            undo.push_async_callback(undone, spec.sandbox_id)
            sandbox = await self._handle(await self._made(facts, spec), spec.epoch, spec.token)
            undo.pop_all()
            return sandbox

    async def attach(self, sandbox_id: str, *, epoch: int, token: str) -> LocalSandbox | ContainerSandbox:
        """A handle on an existing sandbox.

        Raises:
            SandboxNotFoundError: There is no record of it.
            PlaceLostError: It was, and is gone.
        """
        facts = self._records.read(sandbox_id)
        if facts is None:
            from agent_env.sandboxes.local.container_records import marker_of

            known = next(work_dirs(self._work_root, sandbox_id), None)
            if known is not None and marker_of(known[1]) is not None:
                return await self._containers.adopt(sandbox_id, known[1], epoch=epoch, token=token)
            hint = f"its folder {known[1]} is still there; `agent-env gc` removes it" if known else None
            raise SandboxNotFoundError(f"no sandbox {sandbox_id!r} on this machine", concerns=sandbox_id, hint=hint)
        if facts.confiner == CONTAINER:
            family = self._containers if facts.machine_image is None else self._machines
            return await family.attach(facts, epoch=epoch, token=token)
        await self._life.check(facts)
        await self._life.relay(facts)
        return await self._handle(facts, epoch, token)

    async def destroy(self, sandbox_id: str) -> bool:
        """Removes it whole. Idempotent; of an id that this state root and work root don't know, nothing is touched.

        Raises:
            PlacementError: It is another installation's.
            InfrastructureError: Something can't be removed; the record stays, so that it can be tried again.
        """
        self._refuse_another_ones(sandbox_id)
        facts = self._records.read(sandbox_id)
        folders = [path for _, path in work_dirs(self._work_root, sandbox_id)]
        confined = facts is not None and facts.labels and not facts.engine  # then no engine has anything of it
        in_engine = not confined and await self._containers.remove(sandbox_id, facts, folders)
        return await self._life.remove(sandbox_id) or in_engine

    async def list(self, labels: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
        """Every sandbox that carries these labels, also half-made ones and those whose record is lost."""
        from agent_env.sandboxes.local.container_records import marker_of
        from agent_env.sandboxes.local.container_sandbox import container_info

        in_engine = {info.sandbox_id: info async for info in self._containers.list(labels)}
        for facts in self._life.recorded(labels):
            of_engine = in_engine.get(facts.sandbox_id)
            alive = of_engine is not None and of_engine.alive
            yield container_info(facts, alive=alive) if facts.confiner == CONTAINER else info_of(facts)
        known = {*self._records.ids()}
        for sandbox_id, info in in_engine.items():
            if sandbox_id not in known:
                yield info
        for sandbox_id, path, found in self._life.unrecorded():
            if sandbox_id in in_engine:
                continue
            if found and labels.items() <= dict(found).items():
                yield SandboxInfo(sandbox_id, found, alive=False, facts={"work_dir": str(path)})
            elif not found and labels == {SANDBOX: sandbox_id} and marker_of(path) is not None:
                # Made elsewhere, and asked for by its very id: the marker in our own folder says that it is ours to go on with.
                yield SandboxInfo(sandbox_id, {SANDBOX: sandbox_id, HOME: home_of(self._state_root)}, alive=True)

    async def aclose(self) -> None:
        """Lets go of container engines."""
        await self._engines.aclose()

    def _in_container(self) -> bool:
        """A container plays the machine: by configuration, or where nothing can be confined and an engine answers."""
        if self._options.isolation == "auto":
            return not self._can_confine() and self._no_engine is None
        return self._options.isolation == "container"

    def _no_machine(self) -> str:
        """Why there is no machine place here; empty when there is."""
        if self._options.isolation == "container":
            return f"isolation is 'container' by configuration, and {self._no_engine}" if self._no_engine else ""
        if self._can_confine() or self._in_container():
            return ""
        if not host.IS_LINUX:
            why = f"{self.machine.user_namespaces}, and {self._no_engine or 'isolation is by namespaces'}"
            return f"{why} ({NO_ENGINE_HINT}: a container of it then plays the machine)"
        why = self.machine.user_namespaces or "user namespaces are to be made by bubblewrap"
        return f"this machine can confine nothing: {why}, and bubblewrap can't make any either; {_REMEDIES}"

    async def _handle(self, facts: Facts, epoch: int, token: str) -> LocalSandbox:
        connection, watch = await self._life.reach(facts, epoch=epoch, token=token)
        folder, beside = self._records.folder(facts.sandbox_id), partial(self._beside, facts.sandbox_id, epoch, token)
        return LocalSandbox(facts, folder, connection, limits=self._limits, watch=watch, lead=self._life.lead, beside=beside)

    async def _beside(self, sandbox_id: str, epoch: int, token: str) -> Family:
        """The containers beside a machine. That there may be some is written down before there are."""
        facts = self._records.read(sandbox_id)
        if facts is None:
            raise SandboxNotFoundError(f"no sandbox {sandbox_id!r} on this machine", concerns=sandbox_id)
        if not facts.engine:
            problem = await self._engines.problem()
            if problem is not None:
                raise UnsupportedError(f"sandbox {sandbox_id} has no container engine beside it: {problem}", hint=problem.hint)
            facts = replace(facts, engine=record_of(self._engines.client()))
            await asyncio.to_thread(self._records.write, facts)
        return self._containers.beside(facts, epoch=epoch, token=token)


_REMEDIES = (
    "set user.max_user_namespaces (and kernel.apparmor_restrict_unprivileged_userns=0), install bubblewrap, or start a container engine, a "
    "container of which then plays the machine; --unsafe-host runs without a sandbox, on a machine you can lose"
)
