"""The tools of a computer: fixed names, arguments and results, made of the driver's methods."""

from __future__ import annotations

import asyncio
import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import Field

from agent_env_sdk.environment.answers import Image, ToolResult
from agent_env_sdk.environment.author import Environment
from agent_env_sdk.environment.context import ToolContext
from agent_env_sdk.environment.marks import tool

from .faults import fault, within
from .frames import Space
from .keys import chord
from .results import InputResult, PointerListResult, PointerPositionResult, ScreenshotResult, WaitResult
from .runtime import identity

if TYPE_CHECKING:
    from .runtime import Runtime
    from .settings import Settings

_READ: Final = {"readOnlyHint": True, "openWorldHint": False}
_INPUT: Final = {"readOnlyHint": False, "destructiveHint": False, "idempotentHint": False, "openWorldHint": False}

Coordinate = Annotated[float | None, Field(description="In the chosen space. Without x and y: at the pointer, where the computer has one.")]
FrameId = Annotated[str | None, Field(description="The frame that is pointed into; your latest otherwise.")]
SpaceName = Annotated[Space | None, Field(description="frame: pixels of the frame; norm: 0 to norm_scale over it.")]
Scale = Annotated[int | None, Field(description="The size of the norm grid.", ge=1, le=1_000_000)]
Modifiers = Annotated[list[str] | None, Field(description="W3C keys held meanwhile, such as ['Shift'].")]
Screenshot = Annotated[bool, Field(description="Give a new frame afterwards.")]
Button = Annotated[str | None, Field(description="The primary one otherwise.")]
Keys = Annotated[list[str], Field(description="W3C keys, pressed in order and released in reverse: ['Control', 's'].")]
Milliseconds = Annotated[int | None, Field(description="How long, in milliseconds.")]


class ComputerTools(Environment):
    """The tools; a driver inherits them."""

    buttons: Sequence[str] = ("left",)
    keys: Sequence[str] | Literal["all"] = "all"
    max_click_count = 1
    max_text_length = 10_000
    max_wait_ms = 60_000
    max_drag_points = 2
    max_duration_ms = 10_000
    max_key_repeat = 100
    max_scroll_amount = 100
    settings: Settings
    runtime: Runtime

    @tool(annotations=_READ)
    async def computer_screenshot(
        self,
        ctx: ToolContext,
        *,
        region: Annotated[list[float] | None, Field(description="[x0, y0, x1, y1]: that part of a frame, in full resolution.")] = None,
        frame_id: FrameId = None,
        format: Annotated[Literal["png", "jpeg"], Field(description="How the picture is encoded.")] = "png",
        quality: Annotated[int | None, Field(description="Of a JPEG, 1 to 95.")] = None,
        space: SpaceName = None,
        norm_scale: Scale = None,
    ) -> Annotated[ToolResult, ScreenshotResult]:
        """Capture the screen as a frame that you can point into later; with region, a part of a frame."""
        await self.runtime.ready()
        caller, frames = identity(ctx), self.runtime.frames
        if quality is not None and not (format == "jpeg" and 1 <= quality <= 95):
            raise fault("invalid_argument", "quality is for format jpeg, from 1 to 95")
        if region is None:
            if frame_id is not None:
                raise fault("invalid_argument", "frame_id names the frame of a region; give a region too")
            frame = await self.runtime.capture(caller)
            summary = f"Captured {frame.id}: {frame.width}×{frame.height} of the {frame.display} display"
        else:
            whole = await self.runtime.current(frames.get(frame_id, caller))
            box = whole.box(region, *self._space(space, norm_scale))
            frame = frames.crop(whole, box, caller)
            summary = f"Cropped {frame.id}: {frame.width}×{frame.height} of {whole.id} at ({box[0]}, {box[1]})"
        return ToolResult([summary, Image(*frame.encoded(format, quality))], {"summary": summary, **frame.to_json()})

    @tool(annotations=_INPUT)
    async def computer_click(
        self,
        ctx: ToolContext,
        x: Coordinate = None,
        y: Coordinate = None,
        *,
        frame_id: FrameId = None,
        button: Button = None,
        count: Annotated[int, Field(description="2 for a double click, where the computer has it.")] = 1,
        modifiers: Modifiers = None,
        screenshot: Screenshot = False,
        space: SpaceName = None,
        norm_scale: Scale = None,
    ) -> Annotated[ToolResult, InputResult]:
        """Click at a point of a frame."""
        await self.runtime.ready()
        which, held = self._button(button), self._modifiers(modifiers)
        within("count", count, 1, self.max_click_count)
        frame, at, where = await self.runtime.point(identity(ctx), x, y, frame_id=frame_id, space=self._space(space, norm_scale))
        step = ("click", (*await self._at(at), which, count, held))
        summary = f"Clicked {which}{f' ×{count}' if count > 1 else ''}{where}"
        return await self.runtime.act(ctx, summary, step, frame=frame, screenshot=screenshot, mapped=at is not None)

    @tool(annotations=_INPUT)
    async def computer_drag(
        self,
        ctx: ToolContext,
        path: Annotated[list[list[float]], Field(description="Points [[x, y], ...]: a start and an end at least.")],
        *,
        frame_id: FrameId = None,
        button: Button = None,
        duration_ms: Milliseconds = None,
        modifiers: Modifiers = None,
        screenshot: Screenshot = False,
        space: SpaceName = None,
        norm_scale: Scale = None,
    ) -> Annotated[ToolResult, InputResult]:
        """Press at the first point, move along the path, and release at the last."""
        await self.runtime.ready()
        which, held = self._button(button), self._modifiers(modifiers)
        duration = self.settings.drag_duration_ms if duration_ms is None else duration_ms
        within("duration_ms", duration, 0, self.max_duration_ms)
        if not 2 <= len(path) <= self.max_drag_points or any(len(point) != 2 for point in path):
            raise fault("invalid_argument", f"path must have 2 to {self.max_drag_points} points [x, y]")
        frame = await self.runtime.current(self.runtime.frames.get(frame_id, identity(ctx)))
        chosen = self._space(space, norm_scale)
        screen = [frame.to_screen(*frame.point(x, y, *chosen)) for x, y in path]
        summary = f"Dragged {which} through {len(path)} points of {frame.id} in {duration} ms"
        step = ("drag", (screen, which, duration, held))
        return await self.runtime.act(ctx, summary, step, frame=frame, screenshot=screenshot, mapped=True)

    @tool(annotations=_INPUT)
    async def computer_scroll(
        self,
        ctx: ToolContext,
        direction: Annotated[Literal["up", "down", "left", "right"], Field(description="Where the view moves: down shows what is below.")],
        x: Coordinate = None,
        y: Coordinate = None,
        *,
        frame_id: FrameId = None,
        amount: Annotated[int, Field(description="Notches of the wheel.")] = 3,
        modifiers: Modifiers = None,
        screenshot: Screenshot = False,
        space: SpaceName = None,
        norm_scale: Scale = None,
    ) -> Annotated[ToolResult, InputResult]:
        """Scroll what lies under a point."""
        await self.runtime.ready()
        within("amount", amount, 1, self.max_scroll_amount)
        held = self._modifiers(modifiers)
        frame, at, where = await self.runtime.point(identity(ctx), x, y, frame_id=frame_id, space=self._space(space, norm_scale))
        step = ("scroll", (*await self._at(at), direction, amount, held))
        return await self.runtime.act(
            ctx, f"Scrolled {direction} {amount}{where}", step, frame=frame, screenshot=screenshot, mapped=at is not None
        )

    @tool(annotations=_INPUT)
    async def computer_type(
        self,
        ctx: ToolContext,
        text: Annotated[str, Field(description="Any Unicode; \\n types Enter and \\t types Tab.")],
        *,
        screenshot: Screenshot = False,
    ) -> Annotated[ToolResult, InputResult]:
        """Type text into whatever has the keyboard's focus; text that can't be typed whole is refused before anything is."""
        await self.runtime.ready()
        within("the length of text", len(text), 1, self.max_text_length)
        control = sorted({f"U+{ord(char):04X}" for char in text if char not in "\n\t" and unicodedata.category(char) == "Cc"})
        if control:
            raise fault("invalid_argument", f"text has control characters ({', '.join(control)}); press keys with computer_key")
        return await self._keyed(ctx, f"Typed {len(text)} characters", screenshot, ("type_text", (text,)))

    @tool(annotations=_INPUT)
    async def computer_key(
        self,
        ctx: ToolContext,
        keys: Keys,
        *,
        repeat: Annotated[int, Field(description="How often.")] = 1,
        screenshot: Screenshot = False,
    ) -> Annotated[ToolResult, InputResult]:
        """Press one chord of keys."""
        await self.runtime.ready()
        names = chord(keys, self.keys)
        within("repeat", repeat, 1, self.max_key_repeat)
        summary = f"Pressed {'+'.join(names)}{f' ×{repeat}' if repeat > 1 else ''}"
        return await self._keyed(ctx, summary, screenshot, *[("press", (names,))] * repeat)

    @tool(annotations=_READ)
    async def computer_wait(
        self,
        ctx: ToolContext,
        *,
        ms: Annotated[int, Field(description="How long, in milliseconds.")] = 1000,
        screenshot: Screenshot = False,
    ) -> Annotated[ToolResult, WaitResult]:
        """Wait, and give a new frame if one is wanted."""
        await self.runtime.ready()
        within("ms", ms, 0, self.max_wait_ms)
        await asyncio.sleep(ms / 1000)
        return await self.runtime.shown(identity(ctx), {"summary": f"Waited {ms} ms", "waited_ms": ms}, screenshot)

    @tool(annotations=_INPUT)
    async def computer_pointer_move(
        self,
        ctx: ToolContext,
        x: Annotated[float, Field(description="In the chosen space.")],
        y: Annotated[float, Field(description="In the chosen space.")],
        *,
        frame_id: FrameId = None,
        screenshot: Screenshot = False,
        space: SpaceName = None,
        norm_scale: Scale = None,
    ) -> Annotated[ToolResult, InputResult]:
        """Move the pointer to a point; what reacts to hovering does."""
        await self.runtime.ready()
        frame, at, where = await self.runtime.point(identity(ctx), x, y, frame_id=frame_id, space=self._space(space, norm_scale))
        step = ("pointer_move", await self._at(at))
        return await self.runtime.act(ctx, f"Moved the pointer{where}", step, frame=frame, screenshot=screenshot, mapped=True)

    @tool(annotations=_INPUT)
    async def computer_pointer_down(
        self,
        ctx: ToolContext,
        *,
        button: Button = None,
        x: Coordinate = None,
        y: Coordinate = None,
        frame_id: FrameId = None,
        screenshot: Screenshot = False,
        space: SpaceName = None,
        norm_scale: Scale = None,
    ) -> Annotated[ToolResult, InputResult]:
        """Press a button and keep it down, after moving to a point if one is given."""
        return await self._pressed(
            ctx, "pointer_down", button, (x, y), frame_id=frame_id, screenshot=screenshot, space=self._space(space, norm_scale)
        )

    @tool(annotations=_INPUT)
    async def computer_pointer_up(
        self,
        ctx: ToolContext,
        *,
        button: Button = None,
        x: Coordinate = None,
        y: Coordinate = None,
        frame_id: FrameId = None,
        screenshot: Screenshot = False,
        space: SpaceName = None,
        norm_scale: Scale = None,
    ) -> Annotated[ToolResult, InputResult]:
        """Release a button, after moving to a point if one is given."""
        return await self._pressed(
            ctx, "pointer_up", button, (x, y), frame_id=frame_id, screenshot=screenshot, space=self._space(space, norm_scale)
        )

    @tool(annotations=_READ)
    async def computer_pointer_position(
        self, ctx: ToolContext, *, frame_id: FrameId = None
    ) -> Annotated[ToolResult, PointerPositionResult]:
        """Where the pointer is, on the screen and in a frame."""
        await self.runtime.ready()
        caller, frames = identity(ctx), self.runtime.frames
        x, y = await self._at(None)
        frame = frames.get(frame_id, caller) if frame_id is not None else frames.latest(caller)
        told: dict[str, Any] = {"summary": f"The pointer is at ({x}, {y}) of the screen", "screen": {"x": x, "y": y}}
        if frame is not None:
            inside = frame.from_screen(x, y)
            told |= {"frame_id": frame.id, "x": inside[0], "y": inside[1], "inside_frame": frame.contains(*inside)}
        return ToolResult(told["summary"], told)

    @tool(annotations=_READ)
    async def computer_pointer_list(self) -> Annotated[ToolResult, PointerListResult]:
        """The pointers that you may use."""
        pointer = {"id": "default", "kind": "foreground", "label": "The computer's pointer", "default": True}
        return ToolResult("1 pointer: default (foreground)", {"summary": "1 pointer: default (foreground)", "pointers": [pointer]})

    @tool(annotations=_INPUT)
    async def computer_keyboard_down(
        self, ctx: ToolContext, keys: Keys, *, hold_ms: Milliseconds = None, screenshot: Screenshot = False
    ) -> Annotated[ToolResult, InputResult]:
        """Press keys and keep them down: for hold_ms, or until computer_keyboard_up."""
        await self.runtime.ready()
        names = chord(keys, self.keys)
        if hold_ms is None:
            result = await self._keyed(ctx, f"Pressed and held {'+'.join(names)}", screenshot, ("key_down", (names,)))
            self.runtime.hold(identity(ctx), names)
            return result
        within("hold_ms", hold_ms, 0, self.settings.max_hold_ms)
        steps = (("key_down", (names,)), ("_pause", (hold_ms / 1000,)), ("key_up", (names[::-1],)))
        return await self._keyed(ctx, f"Held {'+'.join(names)} for {hold_ms} ms", screenshot, *steps)

    @tool(annotations=_INPUT)
    async def computer_keyboard_up(
        self,
        ctx: ToolContext,
        *,
        keys: Annotated[list[str] | None, Field(description="What to release; everything that you hold otherwise.")] = None,
        screenshot: Screenshot = False,
    ) -> Annotated[ToolResult, InputResult]:
        """Release held keys."""
        await self.runtime.ready()
        caller = identity(ctx)
        names = list(self.runtime.held.get(caller, [])) if keys is None else chord(keys, self.keys)
        if not names:
            raise fault("invalid_argument", "you are holding no keys")
        result = await self._keyed(ctx, f"Released {'+'.join(names)}", screenshot, ("key_up", (names,)))
        self.runtime.let_go(caller, names)
        return result

    async def _pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def _keyed(self, ctx: ToolContext, summary: str, screenshot: bool, *steps: tuple[str, tuple[Any, ...]]) -> ToolResult:
        frame = self.runtime.frames.latest(identity(ctx))
        return await self.runtime.act(ctx, summary, *steps, frame=frame, screenshot=screenshot, mapped=False)

    async def _pressed(
        self,
        ctx: ToolContext,
        operation: str,
        button: str | None,
        point: tuple[float | None, float | None],
        *,
        frame_id: str | None,
        screenshot: bool,
        space: tuple[Space, int],
    ) -> ToolResult:
        await self.runtime.ready()
        which = self._button(button)
        frame, at, where = await self.runtime.point(identity(ctx), *point, frame_id=frame_id, space=space)
        moved = () if at is None else (("pointer_move", at),)
        verb = "Pressed" if operation == "pointer_down" else "Released"
        summary = f"{verb} {which}{where}"
        return await self.runtime.act(
            ctx, summary, *moved, (operation, (which,)), frame=frame, screenshot=screenshot, mapped=at is not None
        )

    async def _at(self, point: tuple[int, int] | None) -> tuple[int, int]:
        """A pixel of the screen: the one that is given, or where the pointer is."""
        if point is not None:
            return point
        try:
            x, y = await self.runtime.ask("pointer_position")
            return int(x), int(y)
        except (TypeError, ValueError) as error:
            raise fault("internal", f"pointer_position did not give (x, y): {error}") from error

    def _space(self, space: Space | None, norm_scale: int | None) -> tuple[Space, int]:
        return space or self.settings.default_space, norm_scale or self.settings.default_norm_scale

    def _button(self, button: str | None) -> str:
        which = button or "left"
        if which not in self.buttons:
            raise fault("unsupported", f"this computer has no {which} button; it has {', '.join(self.buttons)}")
        return which

    def _modifiers(self, modifiers: list[str] | None) -> list[str]:
        return chord(modifiers, self.keys) if modifiers else []
