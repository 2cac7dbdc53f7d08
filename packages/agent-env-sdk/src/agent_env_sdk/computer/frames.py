"""Frames: pictures of the screen that a caller points into later, and the way from their pixels to the screen's."""

from __future__ import annotations

import io
import math
from collections import OrderedDict
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final, Literal

from PIL import Image

from .faults import fault

KEPT: Final = 64
JPEG_QUALITY: Final = 85
Space = Literal["frame", "norm"]


@dataclass(frozen=True, slots=True)
class Display:
    """A display: its size in screen pixels, and a capture's pixels a screen pixel."""

    width: int
    height: int
    scale: float = 1.0

    def to_json(self) -> dict[str, Any]:
        """As results carry it."""
        return {"width": self.width, "height": self.height, "scale": self.scale}

    def __str__(self) -> str:
        return f"{self.width}×{self.height}" + (f" at scale {self.scale:g}" if self.scale != 1 else "")


@dataclass(frozen=True, slots=True)
class Frame:
    """A capture of the whole display, or a part of one."""

    id: str
    png: bytes = field(repr=False)
    width: int
    height: int
    display: Display
    left: int
    top: int
    """Where it begins in its capture."""
    capture_size: tuple[int, int]
    parent: str | None
    captured_at: datetime
    inputs: dict[str, int] = field(repr=False)
    """Inputs that had been delivered before it, by caller."""

    def to_screen(self, x: float, y: float) -> tuple[int, int]:
        """The screen pixel under one of its pixels."""
        whole = self.capture_size
        return math.floor((self.left + x) * self.display.width / whole[0]), math.floor((self.top + y) * self.display.height / whole[1])

    def from_screen(self, x: float, y: float) -> tuple[int, int]:
        """Its pixel over a screen pixel; it may lie outside."""
        whole = self.capture_size
        return math.floor(x * whole[0] / self.display.width - self.left), math.floor(y * whole[1] / self.display.height - self.top)

    def contains(self, x: float, y: float) -> bool:
        """Whether a pixel lies in it."""
        return 0 <= x < self.width and 0 <= y < self.height

    def point(self, x: float, y: float, space: Space, scale: int) -> tuple[float, float]:
        """A point as its pixels.

        Raises:
            AgentEnvError: `out_of_bounds`; points are never moved to where they would fit.
        """
        if space == "norm":
            if not (0 <= x <= scale and 0 <= y <= scale):
                raise fault("out_of_bounds", f"({x:g}, {y:g}) lies outside 0..{scale} of frame {self.id}")
            return min(x * self.width / scale, self.width - 1), min(y * self.height / scale, self.height - 1)
        if not self.contains(x, y):
            raise fault("out_of_bounds", f"({x:g}, {y:g}) lies outside frame {self.id} ({self.width}×{self.height})")
        return x, y

    def box(self, region: list[float], space: Space, scale: int) -> tuple[int, int, int, int]:
        """A region as a box of its pixels, the end outside.

        Raises:
            AgentEnvError: It isn't four numbers, or not a box within the frame.
        """
        if len(region) != 4:
            raise fault("invalid_argument", f"region must be [x0, y0, x1, y1], not {len(region)} numbers")
        across, down = (self.width / scale, self.height / scale) if space == "norm" else (1.0, 1.0)
        left, top = math.floor(region[0] * across), math.floor(region[1] * down)
        right, bottom = math.ceil(region[2] * across), math.ceil(region[3] * down)
        if not (0 <= left < right <= self.width and 0 <= top < bottom <= self.height):
            raise fault("out_of_bounds", f"region {region} is no box within frame {self.id} ({self.width}×{self.height})")
        return left, top, right, bottom

    def image(self) -> Image.Image:
        """Its pixels."""
        opened = Image.open(io.BytesIO(self.png))
        opened.load()
        return opened

    def encoded(self, kind: Literal["png", "jpeg"] = "png", quality: int | None = None) -> tuple[bytes, str]:
        """Its picture and the media type."""
        if kind == "png":
            return self.png, "image/png"
        out = io.BytesIO()
        self.image().convert("RGB").save(out, "JPEG", quality=quality or JPEG_QUALITY)
        return out.getvalue(), "image/jpeg"

    def to_json(self) -> dict[str, Any]:
        """As results carry it."""
        about = {"frame_id": self.id, "width": self.width, "height": self.height, "display": self.display.to_json()}
        at = self.captured_at.isoformat().replace("+00:00", "Z")
        return {**about, **({"parent_frame_id": self.parent} if self.parent else {}), "captured_at": at}


class Frames:
    """The newest frames, and each caller's own latest."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, Frame] = OrderedDict()
        self._latest: dict[str, str] = {}
        self._made = 0

    def capture(self, image: Image.Image, display: Display, inputs: dict[str, int], caller: str) -> Frame:
        """Keeps a capture of the whole display."""
        return self._keep(Frame("", b"", *image.size, display, 0, 0, image.size, None, datetime.now(UTC), inputs), image, caller)

    def crop(self, frame: Frame, box: tuple[int, int, int, int], caller: str) -> Frame:
        """Keeps a part of a frame."""
        part = frame.image().crop(box)
        moved = replace(frame, left=frame.left + box[0], top=frame.top + box[1], width=part.width, height=part.height)
        return self._keep(replace(moved, parent=frame.id), part, caller)

    def get(self, frame_id: str | None, caller: str) -> Frame:
        """A frame by its id, or the caller's latest.

        Raises:
            AgentEnvError: `stale_frame`: there is none, or it is no longer kept.
        """
        found = self._kept.get(frame_id if frame_id is not None else self._latest.get(caller, ""))
        if found is None:
            what = f"frame {frame_id} is not kept" if frame_id is not None else "there is no frame yet"
            raise fault("stale_frame", f"{what}: take a screenshot first")
        return found

    def latest(self, caller: str) -> Frame | None:
        """The caller's latest frame, if it is still kept."""
        return self._kept.get(self._latest.get(caller, ""))

    def _keep(self, described: Frame, image: Image.Image, caller: str) -> Frame:
        self._made += 1
        out = io.BytesIO()
        image.save(out, "PNG")
        frame = replace(described, id=f"f{self._made}", png=out.getvalue())
        self._kept[frame.id] = frame
        self._latest[caller] = frame.id
        if len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        return frame
