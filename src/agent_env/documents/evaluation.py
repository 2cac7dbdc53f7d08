"""An eval, as stored: tasks that are run together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from agent_env.documents.stored import StoredDocument, read_by_type

Json = Any


class EvaluatedTask(BaseModel):
    """One task of an eval."""

    model_config = ConfigDict(frozen=True, extra="allow", defer_build=True)

    task_id: str = Field(min_length=1)
    task_version: int | None = Field(default=None, ge=1)
    """None is the newest at the time of a run."""


class EvalDocument(StoredDocument):
    """An eval."""

    type: Literal["eval"] = "eval"
    tasks: list[EvaluatedTask] = Field(min_length=1)

    @model_validator(mode="after")
    def _lists_each_task_once(self) -> Self:
        ids = [task.task_id for task in self.tasks]
        twice = sorted({id for id in ids if ids.count(id) > 1})
        if twice:
            raise ValueError(f"lists {twice[0]!r} twice; run a task several times with `--k`")
        return self

    def to_json(self) -> dict[str, Json]:
        """The stored form; an unpinned task has `task_version: null`."""
        tasks = [{"task_id": task.task_id, "task_version": task.task_version, **(task.model_extra or {})} for task in self.tasks]
        return {**super().to_json(), "tasks": tasks}


EVAL_TYPES: Mapping[str, type[StoredDocument]] = {"eval": EvalDocument}


def read_eval(data: Json, *, source: str | None = None, path: str = "$") -> StoredDocument:
    """An eval's document.

    Raises:
        ProblemsError: Everything wrong with it.
    """
    return read_by_type(EVAL_TYPES, data, what="an eval", source=source, path=path, default="eval")
