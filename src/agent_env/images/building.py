"""Building one image through the Engine API: streamed in, watched step by step, remembered by the digest of its sources."""

from __future__ import annotations

import hashlib
import json
import re
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from agent_env.defaults import KIB, Limits
from agent_env.errors import AgentEnvError, ImageBuildError, Problem, ProblemsError
from agent_env.images.answers import build_hint, meaning
from agent_env.images.context import BuildContext
from agent_env.images.credentials import Credentials, registry_config
from agent_env.images.engine_api import EngineAnswerError, EngineApi
from agent_env.images.held import HOME_LABEL, SOURCES_LABEL
from agent_env.images.ledger import Ledger
from agent_env.images.packing import tar_stream
from agent_env.images.progress import Bytes, OnProgress, Progress, Stage
from agent_env.images.reference import DOCKER_HUB, ImageReference, reference_problem
from agent_env.redaction import is_secret_key
from agent_env.waiting import deadline

_STEP = re.compile(r"STEP (\d+)/(\d+) ?: (.*)", re.IGNORECASE)
_MADE = re.compile(r" ?-{2,3}> ([0-9a-f]{10,64})")
_CACHED = re.compile(r" ?-{2,3}> Using cache.*")
_RUNNING = re.compile(r" ?-{2,3}> Running in ([0-9a-f]{10,64})")
_NOISE = re.compile(r" ?-{2,3}> .*|(?:Removing|Removed) intermediate container .*|")
_LONGEST_LINE = 64 * KIB
"""What comes without an end of line is shown in pieces of this, so that it is never all in memory (F18)."""
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """What is to be built."""

    context: BuildContext
    name: ImageReference
    platform: str | None = None
    """None: whatever the engine's machine is."""
    build_args: Mapping[str, str] = field(default_factory=dict)
    """Never secrets: they stay readable in the image's history (IM-03)."""
    target: str | None = None
    """A stage of the Dockerfile; None is the last one."""
    labels: Mapping[str, str] = field(default_factory=dict)
    rebuild: bool = False
    """Builds also when the same sources were built before, and runs every step again."""
    upon: str | None = None
    """An image that it is built upon, and anew when that name means another one; None goes by the sources alone."""
    upon_id: str = ""
    """Which one `upon` means; found out when it is built."""

    @property
    def sources(self) -> str:
        """The digest that the image is remembered by: of its context, and of arguments, target and base where there are any."""
        digest = self.context.source_digest(self.platform)
        more_of_it = [*([dict(self.build_args), self.target] if self.build_args or self.target else []), *filter(None, [self.upon_id])]
        if not more_of_it:
            return digest
        more = json.dumps([digest, *more_of_it], sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(more.encode()).hexdigest()

    def check(self) -> None:
        """Refuses what can't be asked of an engine.

        Raises:
            ProblemsError: All that is wrong.
        """
        hint = "give it to the container when it starts, as a secret of the step"
        problems = [
            Problem(f"the build argument {name} looks like a secret, and build arguments stay readable in the image's history", hint=hint)
            for name in sorted(self.build_args)
            if is_secret_key(name)
        ]
        if self.name.digest is not None:
            problems.append(Problem(f"{self.name} names a digest, which only exists once it is built", hint="give a name and a tag"))
        if problems:
            raise ProblemsError(problems)


@dataclass
class Log:
    """What the build said, understood line by line."""

    image: str
    tell: OnProgress
    redact: Callable[[str], str]
    on_made: Callable[[str], None]
    """Told the id of each intermediate image that this very build made."""
    on_running: Callable[[str, bool], None]
    """Told the id of each container that it runs a command in, and whether it is there or gone."""
    tail: deque[str]
    instruction: str = ""
    step: int = 0
    steps: int = 0
    _cached: bool = False
    _container: str | None = None
    """That of the step's command. Its id comes before all that the command says, which could name anybody's."""
    _begun: bool = False
    """The last line began a step."""
    _rest: str = ""

    def take(self, text: str) -> None:
        """Takes a piece of the stream. The engine's own words begin a line, also where a command ended without one."""
        if self._rest and (_STEP.match(text) or _NOISE.fullmatch(text.rstrip())):
            self.close()
        *lines, self._rest = (self._rest + _COLOUR.sub("", text)).split("\n")
        for line in lines:
            self._line(line)
        if len(self._rest) > _LONGEST_LINE:
            self.close()

    def close(self) -> None:
        """Takes what has come as a whole line."""
        if self._rest:
            self._line(self._rest)
            self._rest = ""

    @property
    def base(self) -> str | None:
        """The image that the current step starts from."""
        words = [word for word in self.instruction.split() if not word.startswith("--")]
        named = words[1] if len(words) > 1 and words[0].upper() == "FROM" else None
        return named if named is not None and reference_problem(named) is None else None

    def _line(self, line: str) -> None:
        line = line.rstrip("\r").rpartition("\r")[2]  # of a progress bar that is drawn over itself, its last state
        shown = self.redact(line)
        begun, first = _STEP.fullmatch(line), self._begun
        self._begun = begun is not None
        if begun is not None:
            self.step, self.steps, self.instruction, self._cached = int(begun[1]), int(begun[2]), self.redact(begun[3]), False
            self.tail.append(shown)
            self.tell(Progress(Stage.STEP, self.image, self.instruction, step=self.step, steps=self.steps))
        elif first and (running := _RUNNING.fullmatch(line)):
            self._container = running[1]
            self.on_running(running[1], True)
        elif self._container is not None and line.endswith(f"Removed intermediate container {self._container}"):
            self.on_running(self._container, False)
            self._container = None
        elif _CACHED.fullmatch(line):
            self._cached = True
        elif _MADE.fullmatch(line):
            if not self._cached and not self.instruction.upper().startswith("FROM "):
                self.on_made(line.rpartition(" ")[2])
        elif not _NOISE.fullmatch(line):
            self.tail.append(shown)
            self.tell(Progress(Stage.LOG, self.image, shown, step=self.step, steps=self.steps))


async def build(
    api: EngineApi,
    request: BuildRequest,
    *,
    home: str,
    ledger: Ledger,
    credentials: Mapping[str, Credentials],
    limits: Limits,
    redact: Callable[[str], str],
    tell: OnProgress,
) -> None:
    """Builds and names an image. Cancelling it stops the engine's build too, and leaves no container.

    Raises:
        ImageBuildError: The Dockerfile, or a command in it, failed; it holds the failing step and the end of the log.
        ImageNotFoundError: Its base image does not exist.
        ImageUnavailableError: The base image's registry can't be reached.
        TransferError: A file of the context changed meanwhile.
        DeadlineError: It took longer than `image_build_seconds`.
    """
    sources, name = request.sources, request.name.tagged_name
    ledger.named(sources, name)

    def running(id: str, there: bool) -> None:
        if there:
            ledger.running(sources, id)
        else:
            ledger.forget(sources, running=(id,))

    log = Log(name, tell, redact, lambda id: ledger.intermediate(sources, id), running, deque(maxlen=limits.image_log_lines))
    sent = Bytes(name, tell, Stage.SENDING)
    sending = _Sending(request.context, sent)
    try:
        headers, seconds = registry_config(credentials), limits.image_build_seconds
        events = api.events("build", seconds=seconds, params=_params(request, home), headers=headers, data=sending.stream())
        async with deadline(seconds, f"the build of {name}"), aclosing(events):
            async for event in events:
                with api.reading(f"building {name}"):
                    _take(event, log, sent)
    except EngineAnswerError as error:
        log.close()
        raise _meaning(error, log, redact) from error
    except AgentEnvError:
        # A context that changed breaks the connection, and that is all the engine could say.
        if sending.error is not None:
            raise sending.error from None
        raise


def _take(event: Mapping[str, Any], log: Log, sent: Bytes) -> None:
    if "stream" in event:
        log.take(str(event["stream"]))
    elif event.get("progressDetail"):
        detail = event["progressDetail"]
        sent.update(f"layer {event.get('id')}", int(detail.get("current") or 0), detail.get("total"))


class _Sending:
    """The context on its way; remembers why it broke off."""

    def __init__(self, context: BuildContext, sent: Bytes) -> None:
        self._context = context
        self._sent = sent
        self.error: AgentEnvError | None = None

    async def stream(self) -> AsyncIterator[bytes]:
        """The archive, chunk by chunk."""
        done, total = 0, self._context.size
        try:
            async for chunk in tar_stream(self._context):
                yield chunk
                done += len(chunk)
                self._sent.update("context", min(done, total), total)
        except AgentEnvError as error:
            self.error = error
            raise


def _params(request: BuildRequest, home: str) -> dict[str, str]:
    labels = {**request.labels, HOME_LABEL: home, SOURCES_LABEL: request.sources}
    params = {
        "t": request.name.tagged_name,
        "dockerfile": request.context.dockerfile,
        "labels": json.dumps(labels),
        "rm": "1",
        "forcerm": "1",
    }
    if request.build_args:
        params["buildargs"] = json.dumps(dict(request.build_args))
    if request.target is not None:
        params["target"] = request.target
    if request.platform is not None:
        params["platform"] = request.platform
    if request.rebuild:
        params["nocache"] = "1"
    return params


def _meaning(error: EngineAnswerError, log: Log, redact: Callable[[str], str]) -> AgentEnvError:
    message = redact(error.said)
    base = log.base
    if base is not None and error.detail is None:
        registry = ImageReference.parse(base).host
        found = meaning(message, base, "Docker Hub" if registry == DOCKER_HUB else registry).error
        if type(found).code != "infrastructure":
            return found
    where = f"step {log.step} of {log.steps} ({log.instruction})" if log.step else "its Dockerfile"
    shown = "\n".join(f"  {line}" for line in log.tail)
    return ImageBuildError(
        f"{log.image} could not be built: {where}: {message}" + (f"\n{shown}" if shown else ""),
        concerns=log.image,
        hint=build_hint(message),
        step=log.instruction or None,
        exit_status=error.detail or None,
        tail=tuple(log.tail),
    )
