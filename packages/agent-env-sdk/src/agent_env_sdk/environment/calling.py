"""Running an author's code: async handlers on the loop, others on threads of the environment's own, so that a long one blocks nobody."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

logger = logging.getLogger("agent_env_sdk")


@dataclass(frozen=True, slots=True)
class Raised:
    """A handler's own exception."""

    error: Exception


class Invoker:
    """Runs handlers.

    Handlers that aren't async run one at a time, as authors of plain classes expect, on a thread; `threads` may allow more.

    Args:
        name: The environment's name, for its threads.
        threads: Plain handlers that run at once.
    """

    def __init__(self, name: str, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._counting = threading.Lock()
        self._running = 0

    async def run(self, handler: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The handler's result; what it raises is raised."""
        if is_async(handler):
            return await handler(*args, **kwargs)
        call = functools.partial(contextvars.copy_context().run, handler, *args, **kwargs)
        result = await asyncio.get_running_loop().run_in_executor(self._pool, self._counted, call)
        return await result if inspect.isawaitable(result) else result

    async def attempt(self, handler: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The handler's result, or what it raised."""
        try:
            return await self.run(handler, *args, **kwargs)
        except Exception as error:  # noqa: BLE001 - an author's code may raise anything; the caller is answered, the server goes on
            return Raised(error)

    @property
    def busy(self) -> bool:
        """Whether a plain handler still runs."""
        return self._running > 0

    def _counted(self, call: Callable[[], Any]) -> Any:
        with self._counting:
            self._running += 1
        try:
            return call()
        finally:
            with self._counting:
                self._running -= 1

    def close(self) -> None:
        """Lets go of the threads; what still runs on them ends by itself."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def is_async(handler: Callable[..., Any]) -> bool:
    """Whether calling it gives something to await."""
    return inspect.iscoroutinefunction(inspect.unwrap(handler))
