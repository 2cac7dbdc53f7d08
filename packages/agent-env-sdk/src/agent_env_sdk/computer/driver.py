"""A computer as an environment: a driver's methods capture the screen and send input, and everything else is made of them."""

from __future__ import annotations

import asyncio
import base64
import mimetypes
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

from pydantic import ValidationError

from agent_env_sdk.environment.calling import Invoker
from agent_env_sdk.environment.marks import CARD, add_data, extension, get_data
from agent_env_sdk.environment.seeds import load_bytes
from agent_env_sdk.environment.surface import assemble
from agent_env_sdk.environment.transfers import NamespaceUploader, download
from agent_env_sdk.wire.card import EnvironmentCard, Extension, Tool
from agent_env_sdk.wire.errors import AgentEnvError
from agent_env_sdk.wire.grants import ReadObject, WriteNamespaceGrant
from agent_env_sdk.wire.intake import IntakeDeclaration, IntakeFormat
from agent_env_sdk.wire.names import ADD, DATA_OBJECTS
from agent_env_sdk.wire.parts import FileBytes, FilePart, uploaded_part, uploaded_path

from . import session
from .faults import fault, within
from .frames import Display
from .platforms import Platform
from .runtime import Runtime
from .session import CommandResult
from .settings import Settings
from .tools import ComputerTools

COMPUTER: Final = "urn:agentenv:computer/v1"
READY: Final = "urn:agentenv:computer-ready/v1"
DISPLAY: Final = "urn:agentenv:computer-display/v1"
SPACES: Final = "urn:agentenv:computer-spaces/v1"
POINTER: Final = "urn:agentenv:computer-pointer/v1"
KEYBOARD: Final = "urn:agentenv:computer-keyboard/v1"
EXEC: Final = "urn:agentenv:computer-exec/v1"
MAX_COMMAND_SECONDS: Final = 3600

_GROUPS: Final = {
    "pointer": ("pointer_move", "pointer_down", "pointer_up", "pointer_position"),
    "keyboard": ("key_down", "key_up"),
}
"""By group: the methods that a driver must have, all of them, for the group's tools to be served."""
_NEEDS: Final = {KEYBOARD: "keyboard", EXEC: "run_command"}
_POINTING: Final = ("screenshot", "click", "drag", "scroll", "pointer_move", "pointer_down", "pointer_up")
_RANGES: Final = {"tap_hold_ms": (0, 1000), "type_delay_ms": (0, 1000), "max_hold_ms": (0, 600_000)}


class ComputerDriver(ComputerTools):
    """Derive from it and write the methods that this computer has; those that are left out are not offered.

    Needed are `display`, `capture`, `click`, `drag`, `scroll`, `type_text` and `press`; `set_display`, the four of the pointer, and
    `key_down` with `key_up` may be left out. Coordinates are pixels of the screen. Methods may be `async`. A class with
    `run_command = None` or `write_files = None` offers no commands or takes no files.
    """

    tool_access = True
    display_modes: ClassVar[Sequence[tuple[int, int]]] = ()
    layouts: ClassVar[Sequence[str]] = ("us",)
    supports: ClassVar[Sequence[Mapping[str, Any]]] = ()
    """The platforms, as `[{"os": {"type": "linux", "display": ["x11"]}, "arch": ["amd64"]}]`."""
    delivery: ClassVar[str] = "foreground"

    display: Any = None
    capture: Any = None
    click: Any = None
    drag: Any = None
    scroll: Any = None
    type_text: Any = None
    press: Any = None
    set_display: Any = None
    pointer_move: Any = None
    pointer_down: Any = None
    pointer_up: Any = None
    pointer_position: Any = None
    key_down: Any = None
    key_up: Any = None

    def __init__(self, settings: Settings | None = None, platform: Platform | None = None) -> None:
        missing = [name for name in ("display", "capture", "click", "drag", "scroll", "type_text", "press") if getattr(self, name) is None]
        if missing:
            raise TypeError(f"{type(self).__name__} lacks {', '.join(missing)}")
        self.settings = settings if settings is not None else Settings.from_environment()
        self.platform = platform if platform is not None else Platform.here()
        self.runtime = Runtime(self)

    async def run_command(self, argv: Sequence[str], cwd: str | None, variables: Mapping[str, str] | None, seconds: float) -> CommandResult:
        """Runs a command in the session."""
        return await session.run_command(argv, cwd, variables, seconds, self.settings.exec_output_bytes)

    def write_files(self, files: Mapping[str, bytes]) -> None:
        """Writes files below the session user's home."""
        session.write_files(files)

    @classmethod
    def declaration(cls, platform: Platform) -> EnvironmentCard:
        """The card that this class serves on a platform with default settings, without its own `__init__` having run."""
        driver = cls.__new__(cls)
        ComputerDriver.__init__(driver, Settings(), platform)
        return assemble(driver).card

    def offers(self, what: str) -> bool:
        """Whether a method, or a whole group, is there."""
        return all(getattr(self, name) is not None for name in _GROUPS.get(what, (what,)))

    def invoker(self) -> Invoker:
        """What runs the driver's methods."""
        return self._served().invoker

    async def shutdown(self) -> None:
        """Ends what still runs."""
        await self.runtime.close()

    def served_tools(self, tools: Sequence[Tool]) -> Sequence[Tool]:
        """Those of the groups that are there; tools that take points say in which space."""
        absent = tuple(f"computer_{group}_" for group in _GROUPS if not self.offers(group))
        return [tool.model_copy(update={"description": self._described(tool.name)}) for tool in tools if not tool.name.startswith(absent)]

    def served_extensions(self, extensions: Sequence[Extension]) -> Sequence[Extension]:
        """Those whose methods are there."""
        kept = [each for each in extensions if self.offers(_NEEDS.get(each.uri, "display"))]
        return [each if each.uri != DISPLAY or self.offers("set_display") else _without(each, "set") for each in kept]

    def served_operations(self, operations: Sequence[str]) -> Sequence[str]:
        """Without `data/add` where no files can be written."""
        return [each for each in operations if each != ADD or self.offers("write_files")]

    def extension_params(self, uri: str) -> Mapping[str, Any]:
        """Limits and choices."""
        ranges = {name: {"min": low, "max": high} for name, (low, high) in _RANGES.items()}
        said: dict[str, Mapping[str, Any]] = {
            DISPLAY: {"modes": [list(mode) for mode in self.display_modes]},
            SPACES: {"spaces": ["frame", "norm"]},
            KEYBOARD: {**ranges, "layouts": list(self.layouts)},
            EXEC: {"max_output_bytes": self.settings.exec_output_bytes, "max_timeout_s": MAX_COMMAND_SECONDS},
        }
        return said.get(uri, {})

    def declared_extensions(self) -> Sequence[Extension]:
        """What the computer is, and how files cross its data plane."""
        limits = (
            "max_click_count",
            "max_text_length",
            "max_wait_ms",
            "max_drag_points",
            "max_duration_ms",
            "max_key_repeat",
            "max_scroll_amount",
        )
        features: dict[str, Any] = {name: getattr(self, name) for name in limits}
        features |= {"buttons": list(self.buttons), "keys": self.keys if self.keys == "all" else list(self.keys)}
        features |= {"delivery": self.delivery, "platform": self.platform.to_json(), "supports": [dict(entry) for entry in self.supports]}
        declared = [Extension(uri=COMPUTER, description="A computer that is seen and used by computer_* tools.", params=features)]
        if self.offers("pointer"):
            params = {"buttons": list(self.buttons), "kinds": [self.delivery]}
            declared.append(Extension(uri=POINTER, description="The pointer's own tools, and clicks where it is.", params=params))
        tree = IntakeFormat(part="file", format="file-tree")
        added = [IntakeFormat(part="file", format="file-tree", load="additive")] if self.offers("write_files") else None
        about = "data/add writes files below the session user's home; data/get gives those of the data paths."
        return [*declared, IntakeDeclaration(add=added, get=[tree]).extension(about)]

    @extension(READY, op="status", method="GET", description="Whether the computer can be used, by trying; never sends input.")
    async def _ready_status(self) -> dict[str, Any]:
        checks = await self.runtime.checks()
        return {"ready": all(check["ok"] for check in checks), "checks": checks}

    @extension(DISPLAY, op="get", method="GET", description="The display's size and scale.")
    async def _display_get(self) -> dict[str, Any]:
        return {**(await self.runtime.display()).to_json(), "modes": [list(mode) for mode in self.display_modes]}

    @extension(DISPLAY, op="set")
    async def _display_set(self, width: int, height: int, scale: float | None = None) -> dict[str, Any]:
        if (width, height) not in [tuple(mode) for mode in self.display_modes]:
            modes = ", ".join(f"{across}×{down}" for across, down in self.display_modes) or "none"
            raise fault("invalid_argument", f"{width}×{height} is no mode of this display: {modes}")
        async with self.runtime.turn():
            now: Display = await self.runtime.display()
            await self.runtime.ask("set_display", width, height, now.scale if scale is None else scale)
        return await self._display_get()

    @extension(SPACES, op="get", method="GET", description="The space in which points are meant where a call names none.")
    async def _spaces_get(self) -> dict[str, Any]:
        return {"default_space": self.settings.default_space, "default_norm_scale": self.settings.default_norm_scale}

    @extension(SPACES, op="set")
    async def _spaces_set(self, default_space: str, default_norm_scale: int | None = None) -> dict[str, Any]:
        scale = self.settings.default_norm_scale if default_norm_scale is None else default_norm_scale
        self._set(default_space=default_space, default_norm_scale=scale)
        for tool in self.mounted_card().capabilities.tools or []:
            await self.update_tool(tool.name, description=self._described(tool.name))
        return await self._spaces_get()

    @extension(KEYBOARD, op="get", method="GET", description="How keys are tapped, typed and held.")
    async def _keyboard_get(self) -> dict[str, Any]:
        return self.settings.model_dump(include={*_RANGES, "layout"})

    @extension(KEYBOARD, op="set")
    async def _keyboard_set(
        self, tap_hold_ms: int | None = None, type_delay_ms: int | None = None, layout: str | None = None, max_hold_ms: int | None = None
    ) -> dict[str, Any]:
        if layout is not None and layout not in self.layouts:
            raise fault("unsupported", f"this computer types in {', '.join(self.layouts)}, not {layout!r}")
        given = {"tap_hold_ms": tap_hold_ms, "type_delay_ms": type_delay_ms, "max_hold_ms": max_hold_ms}
        numbers = {name: value for name, value in given.items() if value is not None}
        for name, value in numbers.items():
            within(name, value, *_RANGES[name])
        self._set(**numbers, **({"layout": layout} if layout is not None else {}))
        return await self._keyboard_get()

    @extension(EXEC, op="run", description="Runs a command in the session; a repeated request_id gives the first result.")
    async def _exec_run(
        self, argv: list[str], request_id: str, cwd: str | None = None, env: dict[str, str] | None = None, timeout_s: float | None = None
    ) -> dict[str, Any]:
        if not argv or not request_id:
            raise fault("invalid_argument", "argv and request_id must not be empty; a shell is named: ['sh', '-c', '...']")
        seconds = self.settings.exec_timeout_s if timeout_s is None else timeout_s
        if not 0 < seconds <= MAX_COMMAND_SECONDS:
            raise fault("invalid_argument", f"timeout_s must lie above 0 and be at most {MAX_COMMAND_SECONDS}, not {seconds:g}")

        async def run() -> dict[str, Any]:
            result: CommandResult = await self.runtime.ask("run_command", argv, cwd, env, seconds)
            return result.to_json(self.settings.exec_output_bytes)

        return await self.runtime.command(request_id, run)

    @add_data
    async def _add_files(self, parts: list[Any]) -> None:
        files = {path: await _content(part) for path, part in [(_path(part), part) for part in parts]}
        await self.runtime.ask("write_files", files)

    @get_data
    async def _give_files(self, write_namespace: WriteNamespaceGrant | None = None) -> list[FilePart]:
        files = await asyncio.to_thread(session.files_below, self.settings.data_paths)
        if write_namespace is None:
            return await asyncio.to_thread(lambda: [_inline(path, file) for path, file in files])
        uploader = NamespaceUploader(write_namespace)
        for path, file in files:
            await uploader.upload(path, file)
        return [uploaded_part(path, name=file.name, mime_type=_media_type(file)) for path, file in files]

    def _set(self, **changes: Any) -> None:
        try:
            self.settings = Settings.model_validate({**self.settings.model_dump(), **changes})
        except ValidationError as error:
            wrong = "; ".join(f"{each['loc'][0]}: {each['msg']}" for each in error.errors())
            raise fault("invalid_argument", wrong) from None

    def _described(self, name: str) -> str:
        words = " ".join((getattr(type(self), name).__doc__ or "").split())
        if name.removeprefix("computer_") not in _POINTING:
            return words
        if self.settings.default_space == "frame":
            return f"{words} Points are pixels of the frame, unless space says otherwise."
        return f"{words} Points lie on a grid of 0 to {self.settings.default_norm_scale} over the frame, unless space says otherwise."


def computer_driver(name: str, *, supports: Sequence[Mapping[str, Any]] = ()) -> Any:
    """Names a driver class on its card, and says which platforms it supports."""

    def mark(cls: type[ComputerDriver]) -> type[ComputerDriver]:
        setattr(cls, CARD, {"name": name})
        cls.supports = tuple(supports)
        return cls

    return mark


def _without(served: Extension, op: str) -> Extension:
    params = dict(served.params or {})
    params["methods"] = {name: entry for name, entry in params["methods"].items() if name != op}
    return served.model_copy(update={"params": params})


def _path(part: Any) -> str:
    path = uploaded_path(part)
    if path is None:
        raise AgentEnvError(
            "invalid_seed", f"a computer takes file parts that name their path under {DATA_OBJECTS}, not a {part.kind} part"
        )
    return path


async def _content(part: FilePart) -> bytes:
    marker = (part.metadata or {})[DATA_OBJECTS]
    if "read" not in marker:
        return await load_bytes(part)
    try:
        grant = ReadObject.model_validate(marker["read"])
    except ValidationError:
        raise AgentEnvError("invalid_seed", "the part's read grant is none") from None
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "object"
        await download(grant, target)
        return await asyncio.to_thread(target.read_bytes)


def _inline(path: str, file: Path) -> FilePart:
    content = base64.b64encode(file.read_bytes()).decode()
    body = FileBytes(bytes=content, name=file.name, mime_type=_media_type(file))
    return FilePart(file=body, metadata={DATA_OBJECTS: {"path": path}})


def _media_type(file: Path) -> str:
    return mimetypes.guess_type(file.name)[0] or "application/octet-stream"
