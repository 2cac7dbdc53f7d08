"""`python -m agent_env.cli.reference [FOLDER]`: the reference pages, made from the code: `cli.md`, `steps.md`, `outcomes.md`.

Without FOLDER, the command line's page is printed.
"""

from __future__ import annotations

import ast
import inspect
import json
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from itertools import pairwise
from pathlib import Path, PurePosixPath
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

import click

from agent_env.cli.boundary import PROGRAM
from agent_env.cli.frame import root
from agent_env.cli.table import SECTIONS

if TYPE_CHECKING:
    from pydantic import BaseModel

PREFACE = """\
# Command line

Generated from the code by `python -m agent_env.cli.reference`. Results go to standard output, progress and errors to standard error.

Exit codes: 0 done; 1 a run, check or command failed; 2 the command line, a document or a configuration is wrong and nothing was started;
130 and 143 interrupted by Ctrl-C and SIGTERM. `exec` and `shell` exit with the exit code of what they ran.

With `--json` there is one object on standard output and nothing else. An error is `{"error": {"code", "message", "hint"}}` there, with
`problems` (each with `file`, `path`, `message`, `hint`) when documents are wrong.

`status` is one of completed, failed, cancelled (and queued or running in `runs`). `error` is null, or has `code`, `message` and `step_id`.
`scores` holds numbers only: what was not scored is absent, which is not 0. `passed` says that every run completed and no score is below 1,
or, with `--fail-under`, that the mean score reaches the mark.
"""


SHAPES = {
    "run, resume, task run": '{"runs": [{"run_id", "task", "status", "scores": {verifier: number}, "duration_seconds", "error"}], '
    '"passed"}',
    "runs list": '{"runs": [RUN]}, newest first',
    "runs show": "RUN with task_digest, bundle, seed, options, notes, owner, steps, resources, used",
    "runs teardown": '{"removed", "absent", "failed", "left"}',
    "gc": '{"dry_run", "sandboxes": {"removed", "absent", "failed", "left"}, "folders", "objects": {"count", "bytes"}, "kept", '
    '"unreachable"}',
    "RUN": "run_id, task, task_version, status, interrupted, outcome, kind, scores, created_at, started_at, finished_at, duration_seconds, "
    "error, instance_id, group_id, attempt",
}


def reference() -> str:
    """The page of the command line."""
    rows = [f"| {name} | `{shape}` |" for name, shape in SHAPES.items()]
    return "\n".join([PREFACE, "| command | object |\n|---|---|", *rows, "", *_sections()]).rstrip() + "\n"


def steps_page() -> str:
    """The page of the step types."""
    from agent_env.steps.contract import Step
    from agent_env.steps.registry import BUILT, step_class

    envelope = dict(_fields(Step))
    parts = ["# Steps\n", "Generated from the code by `python -m agent_env.cli.reference`.\n", "Every step has these fields:\n"]
    parts += ["| field | type | default | |\n|---|---|---|---|", *envelope.values(), ""]
    for type in BUILT:
        cls = step_class(type)
        parts += [f"## `{type}`\n", f"{_text(cls.__doc__)}\n", f"When it was cut half-way, a resume does: **{cls.on_resume}**.\n"]
        own = [row for name, row in _fields(cls) if name not in envelope or row != envelope[name]]
        if own:
            parts += ["| field | type | default | |\n|---|---|---|---|", *own, ""]
    parts += ["## Parts of steps\n", "What the types above name: objects, each with these fields.\n"]
    for part in _parts([Step, *map(step_class, BUILT)]):
        rows = [row for _, row in _fields(part)]
        parts += [f"### {part.__name__}\n", f"{_text(part.__doc__)}\n", "| field | type | default | |\n|---|---|---|---|", *rows, ""]
    return "\n".join(parts).rstrip() + "\n"


def outcomes_page() -> str:
    """The page of what endings mean."""
    from agent_env.documents.outcomes import outcomes_table

    return f"# Outcomes\n\nGenerated from the code by `python -m agent_env.cli.reference`.\n\n{outcomes_table()}"


PAGES = {"cli.md": reference, "steps.md": steps_page, "outcomes.md": outcomes_page}


def write_pages(folder: Path) -> None:
    """Writes every page."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, page in PAGES.items():
        (folder / name).write_text(page(), encoding="utf-8")


def _sections() -> Iterator[str]:
    ctx = click.Context(root, info_name=PROGRAM)
    for title, commands in SECTIONS.items():
        yield f"## {title}\n"
        for name in commands:
            command = root.get_command(ctx, name)
            if command is not None:
                yield from _command(command, click.Context(command, info_name=name, parent=ctx), depth=3)


def _command(command: click.Command, ctx: click.Context, *, depth: int) -> Iterator[str]:
    yield f"{'#' * depth} `{ctx.command_path}`\n"
    usage = " ".join([ctx.command_path, *command.collect_usage_pieces(ctx)])
    yield f"```text\n{usage}\n```\n"
    yield _text(command.help) + "\n"
    options = [row for param in command.get_params(ctx) if isinstance(param, click.Option) and (row := _option(param, ctx))]
    if options:
        yield "| option | |\n|---|---|"
        yield "\n".join(options) + "\n"
    if isinstance(command, click.Group):
        for name in command.list_commands(ctx):
            below = command.get_command(ctx, name)
            if below is not None:
                yield from _command(below, click.Context(below, info_name=name, parent=ctx), depth=depth + 1)


def _option(option: click.Option, ctx: click.Context) -> str | None:
    record = option.get_help_record(ctx)
    if record is None or "--help" in option.opts:
        return None
    names, text = (part.replace("|", "\\|") for part in record)
    return f"| `{names}` | {text} |"


def _text(text: str | None) -> str:
    paragraphs = inspect.cleandoc(text or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def _parts(classes: Iterable[type[BaseModel]]) -> Iterator[type[BaseModel]]:
    """The models that the fields of `classes` are made of, each once, and theirs."""
    from pydantic import BaseModel

    waiting = [field.annotation for cls in classes for field in cls.model_fields.values()]
    seen: set[object] = set()
    while waiting:
        kind = waiting.pop(0)
        waiting += get_args(kind)
        if isinstance(kind, type) and issubclass(kind, BaseModel) and kind not in seen:
            seen.add(kind)
            yield kind
            waiting += [field.annotation for field in kind.model_fields.values()]


def _fields(cls: type[BaseModel]) -> Iterator[tuple[str, str]]:
    said = {name: text for base in reversed(cls.__mro__) if base.__module__.startswith("agent_env") for name, text in _docstrings(base)}
    for name, field in cls.model_fields.items():
        default = "needed" if field.is_required() else "" if field.default_factory else f"`{_shown(field.default)}`"
        cells = (f"`{field.alias or name}`", _kind(field.annotation), default, said.get(name, ""))
        yield name, f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


PLAIN = {str: "text", PurePosixPath: "text", int: "whole number", float: "number", bool: "true or false", NoneType: "null", Any: "anything"}


def _kind(annotation: Any) -> str:
    """A type as the author of a task writes it: in words of JSON."""
    if annotation in PLAIN:
        return PLAIN[annotation]
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _kind(arguments[0])
    if origin is Literal:
        return " or ".join(f"`{json.dumps(value)}`" for value in arguments)
    if origin in (Union, UnionType):
        return " or ".join(_kind(one) for one in arguments if one is not NoneType)
    if origin in (tuple, list, Sequence):
        return "list" if arguments[0] is Any else f"list of {_kind(arguments[0])}"
    if origin in (dict, Mapping):
        return "object" if arguments[1] is Any else f"object of {_kind(arguments[1])}"
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return " or ".join(f"`{json.dumps(member.value)}`" for member in annotation)
    if isinstance(annotation, type):
        return f"[{annotation.__name__}](#{annotation.__name__.lower()})"
    raise TypeError(f"the reference has no words for {annotation!r}")


def _shown(value: object) -> str:
    """A default as JSON writes it."""
    if isinstance(value, PurePosixPath):
        return json.dumps(str(value))
    return json.dumps(value.value if isinstance(value, Enum) else value)


def _docstrings(cls: type) -> Iterator[tuple[str, str]]:
    """The texts that stand below fields."""
    body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    statements = body.body if isinstance(body, ast.ClassDef) else []
    for one, other in pairwise(statements):
        match one, other:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str() as text)):
                yield name, _text(text)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        write_pages(Path(sys.argv[1]))
    else:
        sys.stdout.write(reference())
