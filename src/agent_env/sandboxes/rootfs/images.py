"""The unpacked images that sandboxes are made of: of the one store that everything on this machine shares."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from agent_env.containers.endpoint import EngineEndpoint, find_endpoint
from agent_env.defaults import Limits
from agent_env.errors import AgentEnvError
from agent_env.images import ImageStore, Keyring
from agent_env.images.oci.location import Location, Transport
from agent_env.stores.installation import home_of

_OF_ENGINES = {Transport.ANYWHERE, Transport.ENGINE}
Opens = Callable[[str], AbstractAsyncContextManager[ImageStore]]


def store_of(state_root: Path, environ: Mapping[str, str], limits: Limits, keyring_of: Callable[[], Keyring]) -> Opens:
    """Opens the store for an image's location, with the engine's images where it may be among them and an engine answers.

    Nothing is held open once the block ends.
    """

    @asynccontextmanager
    async def opened(location: str) -> AsyncIterator[ImageStore]:
        keyring = keyring_of()
        endpoint = _endpoint(environ) if Location.parse(location).transport in _OF_ENGINES else None
        if endpoint is None:
            yield ImageStore(state_root, keyring=keyring, limits=limits)
            return
        from agent_env.containers import Engine, engine_problem
        from agent_env.images import Images

        async with Engine(endpoint, limits=limits) as engine:
            usable = await engine_problem(engine) is None
            images = Images(engine, state_root=state_root, home=home_of(state_root), limits=limits, keyring=keyring)
            yield ImageStore(state_root, keyring=keyring, images=images if usable else None, limits=limits)

    return opened


def _endpoint(environ: Mapping[str, str]) -> EngineEndpoint | None:
    """Where an engine may listen; None where there is none, so that its client need not be loaded."""
    try:
        return find_endpoint(environ, Path(environ.get("HOME") or Path.home()))
    except AgentEnvError:
        return None
