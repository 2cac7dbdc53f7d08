"""Agents that are programs: a coding agent's command line, started once a turn in a home of its conversation's own.

Its stream of events is recorded as it is, and read as it comes by the translator of its format: that gives the words of progress, the
answer, the calls of tools and the tokens. What it left running goes on after its turn; a turn that is cancelled or takes too long is
ended with everything that it started.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import io
import json
import os
import re
import tarfile
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from agent_env_sdk.wire.a2a import Usage
from agent_env_sdk.wire.native import Translator, translator
from agent_env_sdk.wire.parts import FileBytes, FilePart
from agent_env_sdk.wire.trajectory import EndEvent, ErrorEvent, MessageEvent, ToolCallEvent, ToolResultEvent, UsageEvent

from .author import Agent, AssemblyError
from .processes import MODEL_VARIABLES, Launch, lines, tail
from .turns import AgentConfig, Progress, TaskRequest, TaskResult
from .unpacking import unpack

__all__ = ["Launch", "Models", "ProgramAgent", "ProgramConfig", "Turn"]

WORKSPACE_VARIABLE: Final = "AGENTENV_WORKSPACE"
_OWN_FAULTS: Final = frozenset({"error_max_turns", "error_max_structured_output_retries", "aborted"})
"""Codes of errors that are the agent's own end, and not one of what it depends on."""


class ProgramConfig(AgentConfig):
    """What such an agent takes. A program that can do less takes a part of it."""

    timeout_seconds: float = 1800.0
    model: str | None = None
    system_prompt: str | None = None
    effort: str | None = None
    output_format: dict[str, Any] | None = None
    task_id: str | None = None


@dataclass(frozen=True, slots=True)
class Models:
    """Where models are asked. Taken out of the environment at the start."""

    base_url: str
    """Without a dialect's path and a slash at its end."""
    key: str = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def taken(cls) -> Models:
        """Out of the variables `LITELLM_*`, which are gone then."""
        base, key, more = (os.environ.pop(name, "") for name in MODEL_VARIABLES)
        return cls(base.rstrip("/").removesuffix("/v1"), key, json.loads(more) if more else {})

    def hidden(self, text: str) -> str:
        """The text without the key."""
        return text.replace(self.key, "***") if len(self.key) > 3 else text  # a shorter one is no secret


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of a program."""

    request: TaskRequest[Any]
    prompt: str
    """What is asked, with the places of attached files."""
    home: Path
    """The conversation's own folder; the program's `HOME`."""
    workspace: Path
    models: Models
    session: str | None
    """The program's own id of the conversation, from its last turn."""
    found: dict[str, Any] = field(default_factory=dict)
    """What a subclass notes on the way: `session`, `structured`."""

    @property
    def config(self) -> Any:
        """The turn's settings."""
        return self.request.config

    def write(self, name: str, content: str) -> Path:
        """Writes a file of the home, for the owner alone."""
        path = self.home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(content)
        return path


@dataclass
class _Came:
    """What a turn has come to."""

    text: str = ""
    error: ErrorEvent | None = None
    failed: bool = False
    calls: int = 0
    running: set[str] = field(default_factory=set)
    """Calls without a result yet."""
    counted: int = 0
    """Calls that `over` told of."""
    read: int = 0
    written: int = 0
    cost: float | None = None

    def take(self, event: object) -> Progress | None:
        match event:
            case MessageEvent(source="agent", text=text):
                self.text = text
                return Progress(text)
            case ToolCallEvent(call_id=call_id):
                self.calls += 1
                self.running.add(call_id)
            case ToolResultEvent(call_id=call_id):
                self.running.discard(call_id)
            case UsageEvent():
                self.read += event.input_tokens or 0
                self.written += event.output_tokens or 0
                self.cost = self.cost if event.cost_usd is None else (self.cost or 0.0) + event.cost_usd
            case ErrorEvent():
                self.error = event
            case EndEvent(state=state):
                self.failed = state != "completed"
        return None

    def over(self, *, turn: bool = False) -> int:
        """The calls that are over and weren't told of yet: none while one is under way, and all of them at the turn's end."""
        if self.running and not turn:
            return 0
        before, self.counted = self.counted, self.calls
        return self.calls - before

    def usage(self) -> Usage:
        return Usage(self.calls, self.read, self.written, self.read + self.written, self.cost)


class ProgramAgent(Agent):
    """Such an agent. Subclasses say how a turn is started (`launch`) and what its events tell of the conversation (`notice`).

    Args:
        workspace: Where the program works; None for the variable `AGENTENV_WORKSPACE`, else the present folder.
        homes: Where the conversations' homes are; None: beside the server's own home.
        models: Where models are asked; None for the variables.
    """

    program: str = "program"
    """Its name, with which the codes of its errors begin."""
    config = ProgramConfig
    skill_places: tuple[str, ...] = ()
    """Folders of a home in which the program looks for skills."""

    def __init__(self, *, workspace: Path | None = None, homes: Path | None = None, models: Models | None = None) -> None:
        self.workspace = workspace or Path(os.environ.get(WORKSPACE_VARIABLE) or Path.cwd())
        self.homes = homes or Path.home() / "conversations"
        self.skills_folder = self.homes.parent / "skills"
        self.models = models or Models.taken()

    def launch(self, turn: Turn) -> Launch:
        """How the turn's process is started; files that it reads are written here.

        Raises:
            ValueError: A setting can't be followed; the message says which.
        """
        raise AssemblyError(f"{type(self).__name__} has no launch for turn {turn.request.task_id}")

    def notice(self, turn: Turn, event: Mapping[str, Any]) -> None:
        """Hears each native event."""
        del turn, event

    def recorded(self, event: Mapping[str, Any]) -> bool:
        """Whether a native event belongs into the trajectory."""
        del event
        return True

    def translating(self, turn: Turn) -> Translator:
        """Who reads the turn's events."""
        found = translator(self.trajectory_format, tuple(turn.request.mcp_servers))
        if found is None:
            raise LookupError(f"nobody translates {self.trajectory_format}")
        return found

    async def run(self, request: TaskRequest[Any]) -> AsyncIterator[Progress | TaskResult]:
        """One turn of the program."""
        turn, came = self._turn(request), _Came()
        missing = _missing(turn)
        if missing:
            yield TaskResult.failed(f"{self.program}.{missing[0]}", missing[1], type="infra_error")
            return
        try:
            launch = self.launch(turn)
        except ValueError as error:
            yield TaskResult.failed(f"{self.program}.invalid_setting", str(error))
            return
        reading = self.translating(turn)
        with tempfile.TemporaryFile() as complaints:
            ended: int | None = None
            async for line in lines(launch, turn.home, turn.workspace, request.task_id, complaints):
                if isinstance(line, int):
                    ended = line
                    break
                for progress in self._heard(turn, reading, came, line):
                    yield progress
                # A program's calls can't be held up: what its next one does at once may count as this one's.
                await request.calls_over(came.over())
            await request.calls_over(came.over(turn=True))
            yield self._result(turn, came, ended, tail(complaints))

    async def save_context(self, context_id: str) -> bytes:
        """The conversation's home: what the program itself remembers of it."""
        return await asyncio.to_thread(_packed, self._home(context_id))

    async def load_context(self, context_id: str, saved: bytes) -> None:
        """Takes it up."""
        await asyncio.to_thread(_unpacked, saved, self._home(context_id))

    def _home(self, context_id: str) -> Path:
        return self.homes / hashlib.sha256(context_id.encode()).hexdigest()[:16]

    def _turn(self, request: TaskRequest[Any]) -> Turn:
        home = self._home(request.context_id)
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        if request.skills and self.skills_folder is not None:
            _linked(home, self.skill_places, self.skills_folder)
        workspace = self.workspace or Path.cwd()
        workspace.mkdir(parents=True, exist_ok=True)
        prompt = "\n\n".join(each for each in (request.text, *_attached(request, workspace)) if each)
        return Turn(request, prompt, home, workspace, self.models, request.session_ref)

    def _heard(self, turn: Turn, reading: Translator, came: _Came, line: bytes) -> Iterator[Progress]:
        try:
            native = json.loads(self.models.hidden(line.decode(errors="replace")))
        except ValueError:  # a program's word to people
            return
        if isinstance(native, dict):
            if self.recorded(native):
                turn.request.record(native)
            self.notice(turn, native)
            yield from (progress for event in reading.feed(native) if (progress := came.take(event)))

    def _result(self, turn: Turn, came: _Came, ended: int | None, complaints: str) -> TaskResult:
        session, usage = turn.found.get("session") or turn.session, came.usage()
        if ended == 0 and not came.failed:
            structured = turn.found.get("structured", _structured(turn.config, came.text))
            return TaskResult.said(came.text, usage=usage, structured=structured, session_ref=session)
        code = came.error.code if came.error else "exited"
        told = came.error.message if came.error else f"the program ended with {ended}: {complaints or 'it said nothing'}"
        failed = TaskResult.failed(
            f"{self.program}.{re.sub('[^a-z0-9_]', '_', code.lower())}", self.models.hidden(told),
            type="agent_error" if code in _OWN_FAULTS else "infra_error", usage=usage,
        )  # fmt: skip
        return TaskResult(failed.parts, usage, failed.error, session_ref=session)


def _missing(turn: Turn) -> tuple[str, str] | None:
    if not turn.models.base_url:
        return "no_endpoint", f"there is no endpoint of a model: set {MODEL_VARIABLES[0]}"
    if not turn.config.model:
        return "no_model", "no model is named"
    return None


def _attached(request: TaskRequest[Any], workspace: Path) -> Iterator[str]:
    """Where attached files are; those that came with the message are written into the workspace."""
    for number, part in enumerate(each for each in request.parts if isinstance(each, FilePart)):
        if not isinstance(part.file, FileBytes):
            yield f"[Attached: {part.file.uri}]"
            continue
        name = re.sub(r"[^A-Za-z0-9._-]", "_", part.file.name or f"file-{number}").lstrip(".") or f"file-{number}"
        path = workspace / "inputs" / request.task_id / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(part.file.bytes))
        yield f"[Attached: {path}]"


def _linked(home: Path, places: Sequence[str], skills: Path) -> None:
    """Lets the program find the skills where it looks for them; a program may have made that folder, with its own in it."""
    for place in places:
        (home / place).mkdir(parents=True, exist_ok=True)
        for skill in skills.iterdir():
            link = home / place / skill.name
            if skill.is_dir() and not skill.name.startswith(".") and not link.exists():
                link.symlink_to(skill)


def _structured(config: Any, text: str) -> Any:
    """The value that was asked for: the whole answer, or what stands in a fence of it."""
    if getattr(config, "output_format", None) is None:
        return None
    fenced = re.search(r"```(?:json)?\s*\n(.*?)```", text, re.DOTALL)
    for candidate in (text, fenced[1] if fenced else ""):
        with contextlib.suppress(ValueError):
            return json.loads(candidate)
    return None


def _packed(home: Path) -> bytes:
    home.mkdir(parents=True, exist_ok=True)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as archive:
        archive.add(home, ".")
    return buffer.getvalue()


def _unpacked(saved: bytes, home: Path) -> None:
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    if saved:
        with tarfile.open(fileobj=io.BytesIO(saved), mode="r:gz") as archive:
            unpack(archive, home)
