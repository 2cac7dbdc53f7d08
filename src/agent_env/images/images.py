"""The images of one installation on one engine: built, pulled, pushed, named, pinned, removed. Safe against other processes and kills."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from agent_env.clock import Clock, SystemClock
from agent_env.containers import Engine
from agent_env.defaults import DEFAULT_LIMITS, Limits
from agent_env.errors import AgentEnvError, ImageNotFoundError, ImagePlatformError, InfrastructureError
from agent_env.images import building, transfer
from agent_env.images.building import BuildRequest
from agent_env.images.credentials import Keyring, KnownKeyring
from agent_env.images.engine_api import EngineApi
from agent_env.images.held import HOME_LABEL, EngineHost, HeldImage, engine_host, inspect, labelled
from agent_env.images.ledger import STATE_FOLDER, Ledger
from agent_env.images.locks import turn
from agent_env.images.oci.registry import Registry
from agent_env.images.oci.sources import GROWTH, RegistrySource
from agent_env.images.platforms import EMULATED, Platform, normalize_platform
from agent_env.images.progress import OnProgress, Progress, Stage, nobody
from agent_env.images.provisions import Bases, provisioned, recipe
from agent_env.images.reference import ImageReference
from agent_env.images.saved import SavedImage, load
from agent_env.images.space import Space, build_lock
from agent_env.images.transfer import RefusedError
from agent_env.images.wheelhouse import Wheelhouse

_AMPLE = 10
"""A disk with so many times what must stay free takes any image."""
_COPIES = 2
"""A build's files are on the disk twice: as the engine received them, and as a layer."""


class Images:
    """Images in an engine.

    Args:
        engine: The client of the engine; the caller closes it.
        state_root: The installation's state folder.
        home: The installation's label.
        keyring: Credentials for registries.
        redact: Takes known secrets out of a build's log.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        state_root: Path,
        home: str,
        limits: Limits = DEFAULT_LIMITS,
        keyring: Keyring | None = None,
        redact: Callable[[str], str] = str,
        clock: Clock | None = None,
    ) -> None:
        self._api = EngineApi(engine)
        self._state_root = state_root
        self._root = state_root / STATE_FOLDER
        self._locks = state_root / "locks"
        self._home = home
        self._limits = limits
        self._keyring = keyring or KnownKeyring({})
        self._redact = redact
        self._clock = clock or SystemClock()
        self._host: EngineHost | None = None

    async def host(self) -> EngineHost:
        """The engine's machine, asked once.

        Raises:
            InfrastructureError: The engine can't be reached.
        """
        if self._host is None:
            self._host = await engine_host(self._api)
        return self._host

    async def held(self, name: str) -> HeldImage | None:
        """The image of a name or id, as the engine holds it now.

        Raises:
            InfrastructureError: The engine can't be reached, or refused.
        """
        return await inspect(self._api, name)

    async def build(self, request: BuildRequest, tell: OnProgress = nobody) -> HeldImage:
        """Builds an image, unless the same sources were built before: then that image gets the name.

        What it gets beside its own files takes time to prepare, so that is done only where nothing was built of the same request.
        Two processes that want the same build it once. Cancelling stops the engine's build and leaves no container.

        Raises:
            ProblemsError: The request asks for what no build should have.
            ImagePlatformError: The engine can't run its steps.
            ImageBuildError: The Dockerfile, or a command in it, failed.
            ImageNotFoundError: Its base image does not exist.
            ImageUnavailableError: The base image's registry can't be reached.
            StorageError: There is no room for it.
            DeadlineError: It took too long, or others did.
        """
        request.check()
        ledger = await self._ledger()
        if request.platform is not None:
            (await self.host()).check_platform(Platform.parse(request.platform), request.name.tagged_name)
        if request.upon is not None:
            base = await self.get(await asyncio.to_thread(Bases(self._state_root).meant, request.upon), tell=tell)
            request = replace(request, upon_id=base.id)
        asked = await asyncio.to_thread(recipe, request, self._state_root)
        known = ledger.sources_of(asked) if asked is not None and not request.rebuild else None
        held = await self._built(known, request.name) if known is not None else None
        if held is not None:
            return held
        request = await self._provisioned(request, tell)
        held = await self._built_once(request, tell)
        if asked is not None:
            ledger.prepared(asked, request.sources)
        return held

    async def get(
        self, name: str | ImageReference, *, platform: str | None = None, newest: bool = False, tell: OnProgress = nobody
    ) -> HeldImage:
        """An image that is ready to run: the one that is here, else from its registry.

        An image that is here is used without a word to any registry. With `newest` its registry is asked, and if that can't be reached the
        one that is here is used.

        Raises:
            UserError: It is no image name.
            ImageNotFoundError: There is none of that name.
            ImageUnavailableError: Its registry can't be reached, or refuses.
            ImagePlatformError: It is made for another machine.
            StorageError: There is no room for it.
            DeadlineError: It took too long, or another process did.
        """
        reference = name if isinstance(name, ImageReference) else ImageReference.parse(name)
        wanted = normalize_platform(platform)
        found = await self._present(reference, wanted)
        if found is not None and (not newest or reference.pinned or reference.context_only):
            return await self._ready(found, reference)
        if reference.context_only:
            raise ImageNotFoundError(
                f"{reference} is in no registry: it is built from its context", concerns=str(reference), hint="build it first"
            )
        waiting = Progress(Stage.WAITING, str(reference), "another process pulls the same")
        what = f"another process's pull of {reference}"
        async with turn(self._locks, [f"pull:{reference}"], what, limits=self._limits, on_wait=lambda: tell(waiting)):
            if not newest:
                found = await self._present(reference, wanted)
            if found is None or newest:
                found = await self._pull(reference, wanted, found, tell)
        return await self._ready(found, reference)

    async def load(self, image: SavedImage, tell: OnProgress = nobody) -> HeldImage:
        """An image that lies in an archive, loaded unless the engine has one of its name.

        Raises:
            ImagePlatformError: It is made for another machine.
            EngineFailedError: The archive holds no image that the engine takes.
            StorageError: There is no room for it.
            DeadlineError: It took too long, or another process did.
        """
        name = image.name.tagged_name
        waiting = Progress(Stage.WAITING, name, "another process loads the same")
        async with turn(
            self._locks, [f"pull:{name}"], f"another process's loading of {name}", limits=self._limits, on_wait=lambda: tell(waiting)
        ):
            if await inspect(self._api, name) is None:
                await (await self.space()).make_room(image.archive.stat().st_size * GROWTH, f"loading {name}")
            held = await load(self._api, image, limits=self._limits)
        return await self._ready(held, image.name)

    async def pin(self, name: str | ImageReference, *, newest: bool = False, tell: OnProgress = nobody) -> ImageReference:
        """A name pinned to its content, fetching the image when it is not here.

        Raises:
            ImageNotFoundError: There is none, or it never was in its registry (built here and not pushed).
            AgentEnvError: As `get`.
        """
        reference = name if isinstance(name, ImageReference) else ImageReference.parse(name)
        if reference.pinned:
            return reference
        image = await self.get(reference, newest=newest, tell=tell)
        pinned = image.pin(reference)
        if pinned is None:
            raise ImageNotFoundError(
                f"{reference} is here, and its registry never had it, so there is no digest to pin it to",
                concerns=str(reference),
                hint=f"push it first: agent-env image push {reference}",
            )
        return pinned

    async def push(self, name: str | ImageReference, *, source: str | None = None, tell: OnProgress = nobody) -> ImageReference:
        """Sends an image to its registry.

        Args:
            name: Where to; its registry is part of it.
            source: A name or id that the engine holds it under; None when it is `name`.

        Returns:
            The name, pinned to what the registry calls it.

        Raises:
            ImageNotFoundError: The engine holds no such image.
            ImageUnavailableError: The registry can't be reached, or refuses.
            DeadlineError: It took too long.
        """
        reference = name if isinstance(name, ImageReference) else ImageReference.parse(name)
        reference = reference.with_tag(reference.tag or "latest")
        held = await inspect(self._api, source or str(reference))
        if held is None:
            raise ImageNotFoundError(f"the engine holds no image {source or reference}", concerns=str(reference), hint="build or pull it")
        if str(reference) not in held.names:
            await self.tag(held, reference)
        try:
            return await transfer.push(self._api, reference, keyring=self._keyring, limits=self._limits, tell=tell)
        except RefusedError as error:
            raise error.meaning.error from error

    async def tag(self, image: HeldImage, name: ImageReference) -> None:
        """Gives an image another name, which counts as ours if the image is.

        Raises:
            ImageNotFoundError: The engine holds no such image any more.
        """
        ledger = await self._ledger()
        if image.sources is not None and ledger.owns(image.sources, image.id, image.names):
            ledger.named(image.sources, name.tagged_name)
        await transfer.tag(self._api, image.id, name)

    async def space(self) -> Space:
        """What lists and removes the images that this installation built."""
        return Space(
            self._api,
            await self.host(),
            home=self._home,
            ledger=await self._ledger(),
            locks=self._locks,
            limits=self._limits,
            clock=self._clock,
        )

    @asynccontextmanager
    async def exported(self, name: str) -> AsyncIterator[AsyncIterator[bytes]]:
        """An image as a `docker save` archive, streamed.

        Raises:
            InfrastructureError: The engine can't be reached, or refused.
        """
        async with self._api.content(f"images/{name}/get", seconds=self._limits.image_pull_seconds) as chunks:
            yield chunks

    async def _ledger(self) -> Ledger:
        # One engine may be another machine's: each has its own books.
        engine = re.sub(r"[^A-Za-z0-9-]", "-", (await self.host()).id)
        return Ledger(self._root / "engines" / engine, clock=self._clock)

    async def _provisioned(self, request: BuildRequest, tell: OnProgress) -> BuildRequest:
        name = request.name.tagged_name
        wheelhouse = Wheelhouse(self._state_root, limits=self._limits, clock=self._clock)
        return await provisioned(request, self._state_root, wheelhouse, lambda said: tell(Progress(Stage.LOG, name, said)))

    async def _built_once(self, request: BuildRequest, tell: OnProgress) -> HeldImage:
        held = None if request.rebuild else await self._built(request.sources, request.name)
        if held is not None:
            return held
        name = request.name.tagged_name
        waiting = Progress(Stage.WAITING, name, "another process builds the same")
        what = f"another process's build of {name}"
        async with turn(self._locks, [build_lock(request.sources)], what, limits=self._limits, on_wait=lambda: tell(waiting)):
            held = None if request.rebuild else await self._built(request.sources, request.name)
            return held if held is not None else await self._build(request, tell)

    async def _built(self, sources: str, reference: ImageReference) -> HeldImage | None:
        """What was built of a content, under its name: that which has the name, where it is one of them."""
        ids, name = (await self._ledger()).read(sources).ids, reference.tagged_name
        held = await inspect(self._api, name) if ids else None
        if held is not None and held.id in ids and held.labels.get(HOME_LABEL) == self._home:
            return await self._used(held)
        found = [image for image in await labelled(self._api, self._home, sources) if image.id in ids] if ids else []
        if not found:
            return None
        await self.tag(found[0], reference)
        return await self._used(await self._inspected(name))

    async def _build(self, request: BuildRequest, tell: OnProgress) -> HeldImage:
        name, space, host = request.name.tagged_name, await self.space(), await self.host()
        slots = [f"builds:{host.id}:{slot}" for slot in range(max(self._limits.image_builds, 1))]
        waiting = Progress(Stage.WAITING, name, f"{len(slots)} builds run at once")
        async with turn(self._locks, slots, "a turn to build", limits=self._limits, on_wait=lambda: tell(waiting)):
            await space.make_room(request.context.size * _COPIES, f"the build of {name}")
            await building.build(
                self._api,
                request,
                home=self._home,
                ledger=await self._ledger(),
                credentials=await self._keyring.all(),
                limits=self._limits,
                redact=self._redact,
                tell=tell,
            )
        held = await self._used(await self._inspected(name))
        (await self._ledger()).built(request.sources, held.id)
        await space.keep_budget(held.id)
        return held

    async def _present(self, reference: ImageReference, platform: str | None) -> HeldImage | None:
        held = await inspect(self._api, str(reference.untagged()))
        return held if held is not None and (platform is None or str(held.platform) == platform) else None

    async def _pull(self, reference: ImageReference, platform: str | None, present: HeldImage | None, tell: OnProgress) -> HeldImage:
        host, space = await self.host(), await self.space()
        await space.make_room(await self._estimated_bytes(reference, platform, space), f"the pull of {reference}")
        tries = [platform]
        if platform is None and (host.desktop or EMULATED.architecture in host.emulated) and host.platform != EMULATED:
            tries.append(str(EMULATED))
        for attempt, wanted in enumerate(tries, start=1):
            try:
                await transfer.pull(self._api, reference, platform=wanted, keyring=self._keyring, limits=self._limits, tell=tell)
                break
            except RefusedError as error:
                found: AgentEnvError = error.meaning.error
                if present is not None and error.meaning.unreachable:
                    tell(Progress(Stage.LOG, str(reference), f"the one that is here is used: {found.message}"))
                    return present
                if attempt == len(tries) or not isinstance(found, ImagePlatformError):
                    raise found from error
        return await self._inspected(str(reference.untagged()))

    async def _estimated_bytes(self, reference: ImageReference, platform: str | None, space: Space) -> int:
        """What a pull will take, asked of the registry only where the disk is not ample: registries limit how often they are asked."""
        free = space.free_bytes()
        if free is None or free >= self._limits.image_free_bytes * _AMPLE:
            return 0
        wanted = Platform.parse(platform) if platform is not None else (await self.host()).platform
        async with Registry(reference.normalised().host, keyring=self._keyring, limits=self._limits) as registry:
            with contextlib.suppress(AgentEnvError):  # the engine's own attempt will say what is wrong
                found = await RegistrySource(registry, reference).find(wanted)
                return sum(layer.blob.size for layer in found.layers if layer.blob is not None) * GROWTH
        return 0

    async def _ready(self, image: HeldImage, reference: ImageReference) -> HeldImage:
        (await self.host()).check(image, str(reference))
        return await self._used(image)

    async def _used(self, image: HeldImage) -> HeldImage:
        (await self._ledger()).use(image.id)
        return image

    async def _inspected(self, name: str) -> HeldImage:
        held = await inspect(self._api, name)
        if held is None:
            raise InfrastructureError(f"{name} was here, and somebody removed it at once", concerns=name, hint="try again")
        return held
