"""What a served driver keeps: frames, whose turn it is, readiness, held keys, commands; and the steps that every tool shares."""

from __future__ import annotations

import asyncio
import io
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from PIL import Image as Pillow

from agent_env_sdk.environment.answers import Image, ToolResult
from agent_env_sdk.environment.calling import Raised
from agent_env_sdk.environment.context import ToolContext
from agent_env_sdk.wire.errors import AgentEnvError
from agent_env_sdk.wire.names import DEFAULT_ROLE

from .faults import fault
from .frames import Display, Frame, Frames, Space

if TYPE_CHECKING:
    from .driver import ComputerDriver

KEPT_COMMANDS: Final = 256
INPUTS: Final = frozenset(
    {"click", "drag", "scroll", "type_text", "press", "pointer_move", "pointer_down", "pointer_up", "key_down", "key_up"}
)
Point = tuple[Frame | None, tuple[int, int] | None, str]
"""The frame that was pointed into, the screen pixel (None: where the pointer is), and how the summary says it."""


class Runtime:
    """The state of one driver.

    Args:
        driver: Whose methods act.
    """

    def __init__(self, driver: ComputerDriver) -> None:
        self._driver = driver
        self.frames = Frames()
        self.held: dict[str, list[str]] = {}
        self._releases: dict[str, asyncio.Task[None]] = {}
        self._turn = asyncio.Lock()
        self._delivered: dict[str, int] = {}
        self._ready = False
        self._running: dict[str, asyncio.Task[dict[str, Any]]] = {}
        self._ended: OrderedDict[str, dict[str, Any]] = OrderedDict()

    async def ask(self, operation: str, *args: Any) -> Any:
        """What a method of the driver gives.

        Raises:
            AgentEnvError: The driver's own, or `delivery_failed` (an input that may have arrived) or `internal`.
        """
        outcome = await self._driver.invoker().attempt(getattr(self._driver, operation), *args)
        if not isinstance(outcome, Raised):
            return outcome
        if isinstance(outcome.error, AgentEnvError):
            raise outcome.error
        code = "delivery_failed" if operation in INPUTS else "internal"
        raise fault(code, f"{operation} failed: {type(outcome.error).__name__}: {outcome.error}") from outcome.error

    async def display(self) -> Display:
        """The display as it is now."""
        found = await self.ask("display")
        if not isinstance(found, Display) or min(found.width, found.height, found.scale) <= 0:
            raise fault("internal", f"display gave {found!r}, not a Display with a size and a scale")
        return found

    async def capture(self, caller: str) -> Frame:
        """A new frame. Inputs are counted before it, so that one which lands meanwhile counts as after."""
        inputs = dict(self._delivered)
        image, display = await self.picture()
        return self.frames.capture(image, display, inputs, caller)

    async def picture(self) -> tuple[Pillow.Image, Display]:
        """What the display shows.

        Raises:
            AgentEnvError: `internal`: the driver gave no picture, or one that isn't of the display's size.
        """
        display = await self.display()
        image = _image(await self.ask("capture"))
        wanted = (round(display.width * display.scale), round(display.height * display.scale))
        if image.size != wanted:
            raise fault("internal", f"the capture has {image.size[0]}×{image.size[1]} pixels, the display {wanted[0]}×{wanted[1]}")
        return image, display

    async def current(self, frame: Frame) -> Frame:
        """The frame, if the display is still as it was.

        Raises:
            AgentEnvError: `stale_frame`.
        """
        now = await self.display()
        if now != frame.display:
            raise fault("stale_frame", f"frame {frame.id} shows {frame.display} and the display is now {now}: take a new screenshot")
        return frame

    async def checks(self) -> list[dict[str, Any]]:
        """Whether the computer can be used, by trying; never sends input."""
        found: list[dict[str, Any]] = []
        for name in ("display", "capture"):
            try:
                display = await self.display() if name == "display" else (await self.picture())[1]
                found.append({"name": name, "ok": True, "detail": str(display)})
            except AgentEnvError as error:
                found.append({"name": name, "ok": False, "detail": error.message})
        self._ready = self._ready or all(check["ok"] for check in found)
        return found

    async def ready(self) -> None:
        """Refuses calls until the checks have passed once.

        Raises:
            AgentEnvError: `device_unavailable`.
        """
        failed = [] if self._ready else [check for check in await self.checks() if not check["ok"]]
        if failed:
            raise fault("device_unavailable", "; ".join(f"{check['name']}: {check['detail']}" for check in failed))

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """One input at a time.

        Raises:
            AgentEnvError: `input_busy`: others kept the computer for `queue_wait_s`.
        """
        seconds = self._driver.settings.queue_wait_s
        try:
            async with asyncio.timeout(seconds):
                await self._turn.acquire()
        except TimeoutError:
            raise fault("input_busy", f"other input kept the computer busy for {seconds:g} s") from None
        try:
            yield
        finally:
            self._turn.release()

    async def point(self, caller: str, x: float | None, y: float | None, *, frame_id: str | None, space: tuple[Space, int]) -> Point:
        """Where a call points.

        Raises:
            AgentEnvError: It points nowhere, or outside of its frame.
        """
        at_pointer = self._driver.offers("pointer") and frame_id is None
        if x is None or y is None:
            if x is not None or y is not None or not at_pointer:
                raise fault("invalid_argument", "give x and y" + (", or neither to act at the pointer" if at_pointer else ""))
            return self.frames.latest(caller), None, " at the pointer"
        frame = await self.current(self.frames.get(frame_id, caller))
        spelled = f" (norm {space[1]})" if space[0] == "norm" else ""
        return frame, frame.to_screen(*frame.point(x, y, *space)), f" at ({x:g}, {y:g}){spelled} in {frame.id}"

    async def act(
        self, context: ToolContext, summary: str, *inputs: tuple[str, tuple[Any, ...]], frame: Frame | None, screenshot: bool, mapped: bool
    ) -> ToolResult:
        """Sends inputs in one turn, and tells what others did since the frame.

        Args:
            context: Who acts.
            summary: What is done, in words.
            inputs: Methods of the driver and their arguments, one after the other.
            frame: What the caller looked at.
            screenshot: Whether a new frame is wanted afterwards.
            mapped: Whether a point of the frame is used, which must still be what the display shows.
        """
        caller, sent, effect = identity(context), 0, None
        async with self.turn():
            if mapped and frame is not None:
                await self.current(frame)
            others = self._others(frame, caller)
            try:
                for operation, args in inputs:
                    effect = await self.ask(operation, *args)
                    sent += 1
            except AgentEnvError as error:
                if sent:
                    error.applied = "unknown"
                raise
            finally:
                self._delivered[caller] = self._delivered.get(caller, 0) + (1 if sent else 0)
        told: dict[str, Any] = {"summary": summary, "applied": "yes", "delivery": "foreground", "others_since_frame": others}
        if isinstance(effect, dict) and effect:
            told["effect"] = effect
        return await self.shown(caller, told, screenshot)

    async def shown(self, caller: str, told: dict[str, Any], screenshot: bool) -> ToolResult:
        """A result, with a new frame where one is wanted; a frame that fails doesn't undo what was done."""
        if not screenshot:
            return ToolResult(told["summary"], told)
        try:
            frame = await self.capture(caller)
        except AgentEnvError as error:
            told["summary"] += f"; the screenshot after it failed ({error.code}: {error.message})"
            return ToolResult(told["summary"], told)
        told["summary"] += f", then captured {frame.id}"
        return ToolResult([told["summary"], Image(*frame.encoded())], {**told, "frame": frame.to_json()})

    def hold(self, caller: str, keys: list[str]) -> None:
        """Remembers keys that a caller keeps down; they are released after `max_hold_ms`."""
        held = self.held.setdefault(caller, [])
        held += [key for key in keys if key not in held]
        if (before := self._releases.pop(caller, None)) is not None:
            before.cancel()
        self._releases[caller] = asyncio.create_task(self._release_later(caller))

    def let_go(self, caller: str, keys: list[str]) -> None:
        """Forgets keys that were released."""
        left = [key for key in self.held.pop(caller, []) if key not in keys]
        if left:
            self.held[caller] = left
        elif (later := self._releases.pop(caller, None)) is not None and later is not asyncio.current_task():
            later.cancel()

    async def command(self, request_id: str, start: Callable[[], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
        """A command's result; the same request joins the one that runs, or is answered what it was answered before."""
        if request_id in self._ended:
            return self._ended[request_id]
        if request_id not in self._running:
            self._running[request_id] = asyncio.create_task(self._run(request_id, start))
        return await asyncio.shield(self._running[request_id])

    async def close(self) -> None:
        """Ends what still runs."""
        for task in [*self._releases.values(), *self._running.values()]:
            task.cancel()

    async def _run(self, request_id: str, start: Callable[[], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
        try:
            self._ended[request_id] = await start()
            if len(self._ended) > KEPT_COMMANDS:
                self._ended.popitem(last=False)
            return self._ended[request_id]
        finally:
            del self._running[request_id]

    async def _release_later(self, caller: str) -> None:
        await asyncio.sleep(self._driver.settings.max_hold_ms / 1000)
        while keys := self.held.get(caller, [])[::-1]:
            try:
                async with self.turn():
                    await self.ask("key_up", keys)
            except AgentEnvError as error:
                if error.code == "input_busy":
                    continue
            self.let_go(caller, keys)

    def _others(self, frame: Frame | None, caller: str) -> int:
        if frame is None:
            return 0
        return sum(count - frame.inputs.get(who, 0) for who, count in self._delivered.items() if who != caller)


def identity(context: ToolContext) -> str:
    """Whose frames and keys a call means."""
    return context.role or DEFAULT_ROLE


def _image(capture: Any) -> Pillow.Image:
    if isinstance(capture, Pillow.Image):
        return capture
    if not isinstance(capture, bytes):
        raise fault("internal", f"capture gave {type(capture).__name__}, not the bytes of a picture")
    try:
        opened = Pillow.open(io.BytesIO(capture))
        opened.load()
    except OSError as error:
        raise fault("internal", f"capture gave what is no picture: {error}") from error
    return opened
