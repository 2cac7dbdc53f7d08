"""The shapes of a computer's results, which the tools' output schemas show."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel


class DisplayData(BaseModel):
    """A display."""

    width: int
    height: int
    scale: float


class FrameData(BaseModel):
    """A frame."""

    frame_id: str
    width: int
    height: int
    display: DisplayData
    parent_frame_id: str | None = None
    captured_at: str


class ScreenshotResult(FrameData):
    """What a screenshot gives."""

    summary: str


class InputResult(BaseModel):
    """What an input gives."""

    summary: str
    applied: Literal["yes", "no", "unknown"]
    delivery: Literal["foreground", "background"]
    others_since_frame: int
    effect: dict[str, Any] | None = None
    frame: FrameData | None = None


class WaitResult(BaseModel):
    """What waiting gives."""

    summary: str
    waited_ms: int
    frame: FrameData | None = None


class ScreenPoint(BaseModel):
    """A pixel of the screen."""

    x: int
    y: int


class PointerPositionResult(BaseModel):
    """Where the pointer is."""

    summary: str
    screen: ScreenPoint
    frame_id: str | None = None
    x: int | None = None
    y: int | None = None
    inside_frame: bool | None = None


class PointerData(BaseModel):
    """A pointer."""

    id: str
    kind: Literal["foreground", "background"]
    label: str
    default: bool


class PointerListResult(BaseModel):
    """The pointers."""

    summary: str
    pointers: list[PointerData]
