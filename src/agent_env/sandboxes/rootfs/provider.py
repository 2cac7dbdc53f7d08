"""The provider `rootfs`: a sandbox is a container without an engine, an unpacked image in namespaces of this machine."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path, PurePosixPath

from agent_env.documents.network import NetworkMode
from agent_env.errors import SandboxNotFoundError, UnsupportedError, UserError
from agent_env.images import ImageStore, OnProgress
from agent_env.images.oci.location import Location
from agent_env.images.oci.manifests import ImageConfig
from agent_env.images.oci.store import UnpackedImage
from agent_env.keeper.policy import policy_problems
from agent_env.places import Shape
from agent_env.places.workdir import hand_over, is_concerned
from agent_env.sandboxes.confined import limits as control
from agent_env.sandboxes.confined.confining import Confining, weak
from agent_env.sandboxes.confined.making import first_facts, make, private_range
from agent_env.sandboxes.confined.network import choose, why_shared
from agent_env.sandboxes.confined.records import Facts, new_work_dir
from agent_env.sandboxes.contract import Capabilities, SandboxInfo, SandboxSpec, refusals
from agent_env.sandboxes.rootfs import stacking
from agent_env.sandboxes.rootfs.images import store_of
from agent_env.sandboxes.rootfs.making import LOG, Making, who_is_who
from agent_env.sandboxes.rootfs.options import Options
from agent_env.sandboxes.rootfs.sandbox import RootfsSandbox
from agent_env.waiting import shielded

_NO_NAMESPACES = "this machine's users may not make user namespaces, and an image can't be run without them"


class RootfsProvider(Confining):
    """Makes, finds and removes sandboxes of unpacked images on this machine. Images are shared with all that uses the state folder."""

    name = "rootfs"
    room = "rootfs"
    options_type = Options
    _options: Options

    @cached_property
    def _images(self) -> Callable[[str], AbstractAsyncContextManager[ImageStore]]:
        return store_of(self._state_root, self._environ, self._limits, self._keyring)

    async def capabilities(self) -> Capabilities:
        """What it can do here."""
        return Capabilities(
            shape=Shape.CONTAINER_SHAPED,
            egress=frozenset(NetworkMode),
            limits=control.levels(self.machine),
            users="many" if self.machine.is_root else "one",
            publish=True,
            own_network=not why_shared(self._options.network, self.machine),
            notes=[*await asyncio.to_thread(self._notes)],
        )

    def problems(self, spec: SandboxSpec, capabilities: Capabilities) -> Sequence[str]:
        """Why this spec can't be made here."""
        found = [*refusals(self.name, spec, capabilities)]
        if not spec.image:
            found.append(f"the provider {self.name!r} needs an image")
        else:
            try:
                Location.parse(spec.image)
            except UserError as error:
                found.append(error.message)
        if spec.network is not None and spec.network_mode is NetworkMode.ALLOWLIST:
            found += policy_problems(spec.network.allow_hosts, spec.network.allow_cidrs)
        if self.machine.user_namespaces:
            found.append(f"{_NO_NAMESPACES} ({self.machine.user_namespaces})")
        return found

    async def prepare_image(self, name: str, tell: OnProgress) -> None:
        """Has an image unpacked before a sandbox is made of it. See `contract.PreparesImages`."""
        await self.image_config(name, tell)

    async def image_config(self, name: str, tell: OnProgress) -> ImageConfig:
        """What an image says of itself, unpacked where it was not. See `reading.ReadsImages`."""
        async with self._images(name) as store:
            return (await store.unpacked(name, tell=tell)).config

    async def create(self, spec: SandboxSpec) -> RootfsSandbox:
        """Makes the sandbox; a failure or a cancellation leaves nothing behind.

        Raises:
            UnsupportedError: This machine can't make it, or the image can't be unpacked.
            UserError: A sandbox of that id exists.
            ImageNotFoundError: There is no such image.
            ImagePlatformError: It is made for another machine.
            LaunchError: The image's own command can't be started.
            InfrastructureError: It could not be made.
        """
        reasons = self.problems(spec, await self.capabilities())
        if reasons:
            raise UnsupportedError("; ".join(reasons), concerns=spec.sandbox_id)
        spec = control.bounded(self.machine, spec)
        network, work_dir = choose(spec.network_mode, self._options.network, self.machine), new_work_dir(self._work_root, spec.sandbox_id)
        facts = first_facts(spec, work_dir, network, self.machine, home=self._records.home, notes=self._notes())
        facts = replace(facts, leads={str(port): at for port, at in spec.leads.items()})
        self._records.open(facts)
        async with contextlib.AsyncExitStack() as undo:
            undo.push_async_callback(self._life.undo, self._life.remove, spec.sandbox_id)
            undo.callback(self._release, spec.sandbox_id)
            async with self._images(str(spec.image)) as store:
                image = await store.unpacked(str(spec.image), pinned_by=spec.sandbox_id)
            sandbox = await self._made(replace(facts, image={"name": str(spec.image), "id": image.id}), spec, image, undo)
            undo.pop_all()
            return sandbox

    async def _made(self, facts: Facts, spec: SandboxSpec, image: UnpackedImage, undo: contextlib.AsyncExitStack) -> RootfsSandbox:
        stacked = self._options.root != "copy" and not await asyncio.to_thread(self._no_stacking)
        making = Making(facts, spec, image, self.machine, self._records, self._state_root, self._limits, stacked, self._options.read_only)
        stop = threading.Event()
        undo.callback(stop.set)
        begin = partial(making.begin, lambda: _check(stop))
        work = asyncio.to_thread(make, facts, spec, self.machine, self._records, begin)
        facts = await shielded(work, seconds=self._limits.deploy_seconds, what="making the sandbox")
        if spec.ports:
            facts = await self._life.publish(facts, spec, Path(facts.work_dir) / LOG)
        await self._life.relay(facts)
        sandbox = await self._handle(facts, spec.epoch, spec.token)
        undo.push_async_callback(sandbox.aclose)
        config = making.config()
        if config.user is not None and is_concerned(config.user, config.cwd):
            await hand_over(await sandbox.machine(), PurePosixPath(config.cwd), owner=config.user)
        await sandbox.enter(config)
        return sandbox

    async def attach(self, sandbox_id: str, *, epoch: int, token: str) -> RootfsSandbox:
        """A handle on an existing sandbox.

        Raises:
            SandboxNotFoundError: There is no record of it.
            PlaceLostError: It was, and is gone.
        """
        facts = self._records.read(sandbox_id)
        if facts is None:
            raise SandboxNotFoundError(f"no sandbox {sandbox_id!r} on this machine", concerns=sandbox_id)
        await self._life.check(facts)
        await self._life.relay(facts)
        return await self._handle(facts, epoch, token)

    async def destroy(self, sandbox_id: str) -> bool:
        """Removes it whole. Idempotent; of an id that this state root does not know, nothing is touched.

        Raises:
            PlacementError: It is another installation's.
            InfrastructureError: Something can't be removed; the record stays, so that it can be tried again.
        """
        self._refuse_another_ones(sandbox_id)
        removed = await self._life.remove(sandbox_id)
        self._release(sandbox_id)
        return removed

    def list(self, labels: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
        """Every sandbox that carries these labels, also half-made ones and those whose record is lost."""
        return self._life.list(labels)

    async def aclose(self) -> None:
        """Holds nothing open."""

    async def _handle(self, facts: Facts, epoch: int, token: str) -> RootfsSandbox:
        connection, watch = await self._life.reach(facts, epoch=epoch, token=token)
        folder = self._records.folder(facts.sandbox_id)
        return RootfsSandbox(facts, folder, connection, limits=self._limits, watch=watch, lead=self._life.lead)

    def _release(self, sandbox_id: str) -> None:
        ImageStore(self._state_root, limits=self._limits).release(sandbox_id)

    def _no_stacking(self) -> str:
        self._work_root.mkdir(parents=True, exist_ok=True, mode=0o700)
        base = private_range(self.name) if self.machine.is_root else None
        why = stacking.problem(self._work_root, self._records.tools(), who_is_who(base), self._limits)
        if why and self._options.root == "overlay":
            raise UnsupportedError(f"root = 'overlay' is demanded by configuration: {why}")
        return why

    def _notes(self) -> Sequence[str]:
        notes = []
        if self._options.root == "copy":
            notes.append("each sandbox copies its image's files, by configuration")
        elif why := self._no_stacking():
            notes.append(f"each sandbox copies its image's files: {why}")
        if not self.machine.is_root:
            notes.append("an image's programs have one user, root: other owners and users of the image are this one")
        if why := why_shared(self._options.network, self.machine):
            notes.append(f"sandboxes that may use the network use this machine's own, with its loopback ({why})")
        return [*notes, *weak(control.levels(self.machine))]


def _check(stop: threading.Event) -> None:
    if stop.is_set():
        raise InterruptedError("the making was given up")
