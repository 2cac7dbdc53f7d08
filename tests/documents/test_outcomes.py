"""Every ending has a kind, and the kind decides retry, grading and counting."""

from __future__ import annotations

import asyncio
import errno

import pytest

from agent_env import errors
from agent_env.documents.outcomes import CODES, OUTCOMES, Kind, kind_of, outcome_of, outcomes_table
from agent_env.errors import (
    AgentEnvError,
    InfrastructureError,
    LimitHitError,
    RunCodeExecutionError,
    TaskError,
    TransportLostError,
    UserError,
)


def every_class(root: type[AgentEnvError] = AgentEnvError) -> list[type[AgentEnvError]]:
    return [root, *(found for child in root.__subclasses__() if child.__module__ == errors.__name__ for found in every_class(child))]


def made(cls: type[AgentEnvError]) -> AgentEnvError:
    return errors.ProblemsError([errors.Problem("x")]) if cls is errors.ProblemsError else cls("x")


def test_every_kind_has_its_row_and_the_docs_table_prints_it() -> None:
    assert set(OUTCOMES) == set(Kind)
    assert set(CODES.values()) | {Kind.COMPLETED, Kind.CANCELLED, Kind.UNRECOGNISED} == set(Kind)
    assert all(f"| `{kind}` | {row.meaning} |" in outcomes_table() for kind, row in OUTCOMES.items())


@pytest.mark.parametrize("cls", every_class(), ids=lambda cls: cls.__name__)
def test_f11_an_infrastructure_error_never_counts_and_a_task_error_does(cls: type[AgentEnvError]) -> None:
    outcome = outcome_of(made(cls))
    if issubclass(cls, InfrastructureError | UserError):
        assert not outcome.counts
        assert not outcome.grade
    if issubclass(cls, TaskError) and cls is not errors.ReviewAbortedError:
        assert outcome.counts
        assert not outcome.retry


@pytest.mark.parametrize("cls", [cls for cls in every_class() if cls is not AgentEnvError], ids=lambda cls: cls.__name__)
def test_every_error_class_is_recognised(cls: type[AgentEnvError]) -> None:
    assert kind_of(made(cls)) is not Kind.UNRECOGNISED


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (None, Kind.COMPLETED),
        (asyncio.CancelledError(), Kind.CANCELLED),
        (KeyboardInterrupt(), Kind.CANCELLED),
        (LimitHitError("memory"), Kind.LIMIT),
        (errors.RunOwnedError("x"), Kind.INVALID),
        (errors.ConcurrentModificationError("x"), Kind.INFRASTRUCTURE),
        (OSError(errno.ENOSPC, "full"), Kind.STORAGE),
        (BrokenPipeError(), Kind.TRANSPORT_LOST),
        (TimeoutError(), Kind.DEADLINE),
        (ValueError("timed out, connection lost"), Kind.UNRECOGNISED),
        (AgentEnvError("no branch"), Kind.UNRECOGNISED),
    ],
)
def test_the_kind_comes_from_class_and_code_never_from_the_message(error: BaseException | None, kind: Kind) -> None:
    assert kind_of(error) is kind


def test_what_is_not_recognised_does_not_count_as_the_agents_failure() -> None:
    assert not OUTCOMES[Kind.UNRECOGNISED].counts


def test_of_several_errors_the_one_that_forbids_counting_speaks() -> None:
    task, lost = RunCodeExecutionError("3"), TransportLostError("gone")
    assert kind_of(ExceptionGroup("", [task, lost])) is Kind.TRANSPORT_LOST
    assert kind_of(ExceptionGroup("", [task, ExceptionGroup("", [ValueError()])])) is Kind.UNRECOGNISED
    assert kind_of(BaseExceptionGroup("", [task, asyncio.CancelledError()])) is Kind.TASK


def test_a_plugin_error_means_what_its_nearest_known_ancestor_means() -> None:
    class PluginError(errors.SandboxUnavailableError):
        code = "plugin_broke"

    assert kind_of(PluginError("x")) is Kind.SANDBOX_UNAVAILABLE
