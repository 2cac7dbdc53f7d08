"""A computer in memory: a picture that remembers what was done to it."""

from __future__ import annotations

from typing import Any

from agent_env_sdk.computer import ComputerDriver, Display, computer_driver
from PIL import Image, ImageDraw

SUPPORTS = [{"os": {"type": "linux", "display": ["x11", "wayland"]}, "arch": ["amd64"]}]


@computer_driver("painted", supports=SUPPORTS)
class Painted(ComputerDriver):
    """Whatever is clicked becomes a dot; its log says what arrived."""

    buttons = ("left", "right")
    max_click_count = 2
    max_drag_points = 3
    display_modes = ((320, 200), (400, 300))
    scale = 1

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.size = (320, 200)
        self.pointer = (0, 0)
        self.log: list[tuple[Any, ...]] = []

    def display(self) -> Display:
        return Display(*self.size, float(self.scale))

    def set_display(self, width: int, height: int, scale: float) -> None:
        self.size = (width, height)

    def capture(self) -> Image.Image:
        scale = self.scale
        picture = Image.new("RGB", (self.size[0] * scale, self.size[1] * scale), "navy")
        draw = ImageDraw.Draw(picture)
        for entry in self.log:
            if entry[0] == "click":
                x, y = entry[1] * scale, entry[2] * scale
                draw.rectangle([x, y, x + scale - 1, y + scale - 1], "white")
        return picture

    def click(self, x: int, y: int, button: str, count: int, modifiers: list[str]) -> dict[str, Any]:
        self.log.append(("click", x, y, button, count, tuple(modifiers)))
        return {"focus_changed": True}

    async def drag(self, path: list[tuple[int, int]], button: str, duration_ms: int, modifiers: list[str]) -> None:
        self.log.append(("drag", *path, button, duration_ms))

    def scroll(self, x: int, y: int, direction: str, amount: int, modifiers: list[str]) -> None:
        self.log.append(("scroll", x, y, direction, amount))

    def type_text(self, text: str) -> None:
        if text == "unplugged":
            raise OSError("no keyboard")
        self.log.append(("type", text))

    def press(self, keys: list[str]) -> None:
        self.log.append(("press", *keys))

    def pointer_move(self, x: int, y: int) -> None:
        self.pointer = (x, y)

    def pointer_down(self, button: str) -> None:
        self.log.append(("down", button))

    def pointer_up(self, button: str) -> None:
        self.log.append(("up", button))

    def pointer_position(self) -> tuple[int, int]:
        return self.pointer

    def key_down(self, keys: list[str]) -> None:
        self.log.append(("key_down", *keys))

    def key_up(self, keys: list[str]) -> None:
        self.log.append(("key_up", *keys))


@computer_driver("blank", supports=SUPPORTS)
class Blank(ComputerDriver):
    """Only what every computer must have; no commands and no files."""

    run_command = None  # type: ignore[assignment]
    write_files = None  # type: ignore[assignment]

    def display(self) -> Display:
        return Display(10, 10)

    def capture(self) -> bytes:
        return b"no picture"

    def click(self, *_: Any) -> None: ...

    def drag(self, *_: Any) -> None: ...

    def scroll(self, *_: Any) -> None: ...

    def type_text(self, _: str) -> None: ...

    def press(self, _: list[str]) -> None: ...
