"""The one error tree. Three branches say whose turn it is: the user's, the world's, or ours.

Every error carries a stable `code`, a message in the user's words, what it concerns, and a hint. A library's error is
wrapped once, at its boundary, with the cause kept. `documents.outcomes` decides from the `code` whether an ending is retried,
graded and counted; nothing else does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from agent_env.wording import counted


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong in what a user wrote, precise enough to be mended without a search."""

    message: str
    """What is wrong and why, in one sentence, without a final full stop."""
    file: str | None = None
    """The file it stands in, as the user spelled it."""
    path: str | None = None
    """JSON path inside the file, such as `$[2].criteria[0].paths`."""
    hint: str | None = None
    """What to do about it: a near spelling, the accepted values, a command."""

    def __str__(self) -> str:
        # A file's name may hold line breaks: what stands in a bundle must not look like a line of ours.
        where = ": ".join("\\n".join(part.splitlines()) for part in (self.file, self.path) if part)
        text = f"{where}: {self.message}" if where else self.message
        return f"{text} ({self.hint})" if self.hint else text


class AgentEnvError(Exception):
    """Root of every error that agent-env raises on purpose.

    Args:
        message: One line, in the user's words.
        concerns: The place, file or resource it is about.
        hint: What to do about it.
    """

    code = "error"
    exit_code = 1
    evidence: Sequence[Any] = ()
    """Updates (`documents.updates`) that a step which it ends adds to its run's context all the same."""

    def __init__(self, message: str, *, concerns: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.concerns = concerns
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class UserError(AgentEnvError):
    """What the user asked for can't be done as asked: a document, an option, a reference."""

    code = "invalid"
    exit_code = 2
    readable: object = None
    """What could be made of it all the same, so that whoever collects problems can look for more."""


class ProblemsError(UserError):
    """Everything wrong with what was given, all at once.

    Args:
        problems: Each with its place.
        summary: In place of their count.
        readable: What could be made of it all the same, so that whoever collects problems can look for more.
    """

    code = "problems"

    def __init__(self, problems: Iterable[Problem], *, summary: str | None = None, readable: object = None) -> None:
        self.problems = tuple(problems)
        self.readable = readable
        super().__init__(summary or f"{counted(len(self.problems), 'problem')} found")

    def __str__(self) -> str:
        return "\n".join(str(problem) for problem in self.problems)


class UsageError(UserError):
    """The command line or a call was given arguments that don't fit together."""

    code = "usage"


class ConfigError(UserError):
    """A configuration file or variable can't be used."""

    code = "config"


class UntrustedError(UserError):
    """A working tree's configuration asks for what only a trusted folder may."""

    code = "untrusted"


class NotFoundError(UserError):
    """A document, run, artifact or object that was named does not exist."""

    code = "not_found"


class SandboxNotFoundError(NotFoundError):
    """No provider knows a sandbox of that id."""

    code = "sandbox_not_found"


class ImageNotFoundError(NotFoundError):
    """No registry, engine or archive that was asked has the image."""

    code = "image_not_found"


class ImageBuildError(UserError):
    """An image's own build failed: its Dockerfile, or a command in it. `tail` holds the last lines of its log."""

    code = "image_build"
    exit_code = 1

    def __init__(
        self,
        message: str,
        *,
        concerns: str | None = None,
        hint: str | None = None,
        step: str | None = None,
        exit_status: int | None = None,
        tail: tuple[str, ...] = (),
    ) -> None:
        super().__init__(message, concerns=concerns, hint=hint)
        self.step = step
        """The instruction that failed, as the Dockerfile spells it."""
        self.exit_status = exit_status
        """The exit code of the command in it, when it was one."""
        self.tail = tail


class PlacementError(UserError):
    """A step's target has no place: nothing recorded, two targets, or a shape that can't serve it."""

    code = "placement"


class UnsupportedError(UserError):
    """A provider or this machine can't do what is asked; the hint names one that can."""

    code = "unsupported"


class ImagePlatformError(UnsupportedError):
    """An image is made for another operating system or architecture than the machine that is to run it."""

    code = "image_platform"


class TaskError(AgentEnvError):
    """The task's own work went wrong, as its author wrote it (a script's exit code, an invalid result)."""

    code = "task"


class RunCodeExecutionError(TaskError):
    """A `run_code` script ended badly: its exit code or its own time limit."""

    code = "run_code_failed"


class RunCodeValidationError(TaskError):
    """A `run_code` script's files or result break a stated rule."""

    code = "run_code_invalid"


class ReviewAbortedError(TaskError):
    """A person decided that the run must not go on."""

    code = "review_aborted"


class LimitHitError(TaskError):
    """What the task or agent ran hit a limit of its sandbox: memory, processes or disk."""

    code = "limit_hit"


class BudgetExceededError(LimitHitError):
    """What the run may use of models is used up."""

    code = "budget_exceeded"


class InfrastructureError(AgentEnvError):
    """The world did something: a machine, a network, a disk. Never a score."""

    code = "infrastructure"


class SandboxUnavailableError(InfrastructureError):
    """A sandbox or its container is gone, stopped or unreachable."""

    code = "sandbox_unavailable"


class PlaceLostError(SandboxUnavailableError):
    """A place that was recorded no longer exists (a reboot, someone else's removal)."""

    code = "place_lost"


class PlaceAwaitsError(SandboxUnavailableError):
    """A container was started again, and its helper waits to be told what the place is."""

    code = "place_awaits"


class PlaceEndedError(SandboxUnavailableError):
    """A place's own command has ended, and the place with it."""

    code = "place_ended"


class ContainerNotRunningError(SandboxUnavailableError):
    """A container that was named is not running; nothing else takes its part."""

    code = "container_not_running"


class EngineUnavailableError(InfrastructureError):
    """No container engine answers: none is here, it is not running, or it went away."""

    code = "engine_unavailable"


class EngineDeniedError(UserError):
    """The container engine, or its socket, does not let this user in."""

    code = "engine_denied"


class EngineRefusedError(UserError):
    """The container engine can't do what is asked as it is asked."""

    code = "engine_refused"


class EngineFailedError(InfrastructureError):
    """The container engine tried and failed."""

    code = "engine_failed"


class EngineConflictError(EngineFailedError):
    """What is asked stands against what the engine has: a name in use, a removal in progress."""

    code = "engine_conflict"


class PortTakenError(EngineFailedError):
    """A port of the host was free when it was chosen and is not any more."""

    code = "port_taken"


class LaunchError(InfrastructureError):
    """A command could not be started at all: missing program or folder, unknown user, argument too long."""

    code = "launch_failed"
    exit_code = 126
    """As shells say it: what was named can't be run."""


class ProgramMissingError(LaunchError):
    """The place has no such program."""

    exit_code = 127
    """As shells say it: nothing of that name was found."""


class TransportLostError(InfrastructureError):
    """The connection to a place broke and the outcome of what ran there is not known."""

    code = "transport_lost"


class TransferError(InfrastructureError):
    """Files could not be moved, or arrived altered."""

    code = "transfer_failed"


class DeadlineError(InfrastructureError):
    """A wait outlived its deadline. `partial` is what was seen until then."""

    code = "deadline"

    def __init__(self, message: str, *, concerns: str | None = None, hint: str | None = None, partial: bytes = b"") -> None:
        super().__init__(message, concerns=concerns, hint=hint)
        self.partial = partial


class ImageUnavailableError(InfrastructureError):
    """A registry can't be reached, or would not serve an image now."""

    code = "image_unavailable"


class ModelUnavailableError(InfrastructureError):
    """A model can't be asked now, or what it answered is no answer."""

    code = "model_unavailable"


class StepTimeoutError(TaskError):
    """A step outlived its own `timeout_seconds`."""

    code = "step_timeout"


class StorageError(InfrastructureError):
    """The run database or the object store can't be read or written (disk full, locked, damaged)."""

    code = "storage"


class ConcurrentModificationError(InfrastructureError):
    """Somebody else changed the same record first."""

    code = "concurrent_modification"


class RunOwnedError(UserError):
    """Another live process owns the run."""

    code = "run_owned"
    exit_code = 1


class SupersededError(InfrastructureError):
    """This process was the run's owner and no longer is: its epoch was taken over, so it may not act."""

    code = "superseded"


class ResumeRefusedError(UserError):
    """A half-done step can't be resumed without a person's decision; the hint says which."""

    code = "resume_refused"
    exit_code = 1


class InternalError(AgentEnvError):
    """Our own mistake. Please report it."""

    code = "internal"
