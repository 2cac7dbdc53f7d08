"""The one error tree. Three branches say whose turn it is: the user's, the world's, or ours.

Every error carries a stable `code`, a message in the user's words, what it concerns, and a hint. A library's error is
wrapped once, at its boundary, with the cause kept. `documents.outcomes` decides from the `code` whether an ending is retried,
graded and counted; nothing else does.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


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
        where = ": ".join(part for part in (self.file, self.path) if part)
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


class ProblemsError(UserError):
    """Everything wrong with what was given, all at once."""

    code = "problems"

    def __init__(self, problems: Iterable[Problem], *, summary: str | None = None) -> None:
        self.problems = tuple(problems)
        count = len(self.problems)
        super().__init__(summary or f"{count} problem{'s' if count != 1 else ''} found")

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


class PlacementError(UserError):
    """A step's target has no place: nothing recorded, two targets, or a shape that can't serve it."""

    code = "placement"


class UnsupportedError(UserError):
    """A provider or this machine can't do what is asked; the hint names one that can."""

    code = "unsupported"


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


class InfrastructureError(AgentEnvError):
    """The world did something: a machine, a network, a disk. Never a score."""

    code = "infrastructure"


class SandboxUnavailableError(InfrastructureError):
    """A sandbox or its container is gone, stopped or unreachable."""

    code = "sandbox_unavailable"


class PlaceLostError(SandboxUnavailableError):
    """A place that was recorded no longer exists (a reboot, someone else's removal)."""

    code = "place_lost"


class LaunchError(InfrastructureError):
    """A command could not be started at all: missing program or folder, unknown user, argument too long."""

    code = "launch_failed"


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
