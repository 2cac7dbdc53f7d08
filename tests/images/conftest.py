"""Coroutine tests of this folder run in an event loop of their own; a registry and a bench in the real engine are there for the asking."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from agent_env.containers import Engine, EngineEndpoint
from tests.images.laboratory import Bench, bench, debian_registry


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs a coroutine test to its end."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    asyncio.run(pyfuncitem.obj(**arguments))
    return True


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a real registry that speaks plain HTTP on the loopback."""
    with debian_registry(tmp_path_factory.mktemp("registry")) as address:
        yield address


@pytest.fixture
def here(docker: EngineEndpoint, busybox: str, tmp_path: Path) -> Callable[[], AbstractAsyncContextManager[Bench]]:
    """Opens a bench in the real engine, of which nothing is left."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[Bench]:
        async with Engine(docker) as engine, bench(engine, tmp_path, busybox) as made:
            yield made

    return opened
