"""What keeps tasks from running on this machine, for the commands that only look."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agent_env.cli.session import run_async
from agent_env.errors import Problem, ProblemsError

if TYPE_CHECKING:
    from agent_env.config import Config
    from agent_env.engine import TaskPlan
    from agent_env.engine.preflight import Preflight
    from agent_env.engine.preflight_models import AgentNeeds, ModelsAsked


def refuse_unable(
    config: Config, plans: Mapping[str, TaskPlan], overrides: Mapping[str, Any], needs: AgentNeeds, *, replayed: bool
) -> Sequence[Problem]:
    """For a dry run: says what the run itself would say. What could not be found out comes back, as warnings.

    Args:
        config: The configuration; what depends on its unsound tables is not asked.
        plans: File or id, as messages will name it → task.
        overrides: `user_overrides` of the runs.
        needs: Which agents take credentials of models.
        replayed: The answers of models come from a recording.

    Raises:
        ProblemsError: Sandboxes that no provider of their chain can make here, images that are nowhere, secrets without a value, models
            that nobody configured.
    """
    from agent_env.engine.preflight_models import ModelsAsked

    found = _asked(config, plans, overrides, ModelsAsked(config.model, needs, config.default_agent_id, replayed))
    if found.problems:
        raise ProblemsError(found.problems)
    return found.remarks


def unable(config: Config, plans: Mapping[str, TaskPlan], *, strict: bool) -> Sequence[Problem]:
    """For a check of documents: what can't be done on this machine is no mistake of theirs, and so a warning.

    Raises:
        ProblemsError: What is wrong anywhere; with `strict` also what this machine can't do.
    """
    found = _asked(config, plans, None)
    if found.mistakes or (strict and found.inabilities):
        raise ProblemsError([*found.mistakes, *(found.inabilities if strict else ())])
    return (*found.inabilities, *found.remarks)


def _asked(
    config: Config, plans: Mapping[str, TaskPlan], overrides: Mapping[str, Any] | None, models: ModelsAsked | None = None
) -> Preflight:
    from agent_env.engine.preflight import preflight

    return run_async(lambda: preflight(config, plans, overrides, models))
