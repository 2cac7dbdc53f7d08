"""`python -m agent_env.cli.reference [FOLDER]`: the reference pages, made from the code: `cli.md`, `steps.md`, `outcomes.md`,
`configuration.md`.

Without FOLDER, the command line's page is printed.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from agent_env.cli.boundary import PROGRAM
from agent_env.cli.command_table import SECTIONS
from agent_env.cli.frame import root

if TYPE_CHECKING:
    from agent_env.steps.reference import FieldReference

PREFACE = """\
# Command line

Generated from the code by `python -m agent_env.cli.reference`. Results go to standard output, progress and errors to standard error.

Exit codes: 0 done, whatever runs scored (also 0), unless `--fail-under` sets a mark; 1 a run, check or command failed, or the mark was
missed; 2 the command line, a document or a configuration is wrong and nothing was started; 130 and 143 interrupted by Ctrl-C and SIGTERM.
`exec` and `shell` exit with the exit code of what they ran: 127 when there is no such program, 126 when it can't be started, 124 when
`--timeout` ended it, 128 and its number when a signal did.

With `--json` there is one object on standard output and nothing else. An error is `{"error": {"code", "message", "hint"}}` there, with
`problems` (each with `file`, `path`, `message`, `hint`) when documents are wrong.

`status` is one of completed, failed, cancelled (and queued or running in `runs`). `error` is null, or has `code`, `message` and `step_id`.
`scores` holds numbers only: what was not scored is absent, which is not 0. `score` is what the run enters statistics with, and
its reward: null when it is unscored or does not count, 0 for one that crashed before its verifiers (see [Outcomes](outcomes.md)).
`mean_score` is the mean of the runs `counted` that are not unscored, which `--fail-under` judges, and `standard_error` that of this mean
(null below two scores). `passed` says that every run completed and no score is below 1,
or, with `--fail-under`, that the mean score reaches the mark. A command that was cut short names what it had not begun in
`not_started`; an error that cut it short stands beside as `error`. `group_id` is what the runs of one command have in common (`runs list
--group`); `context` names a run's file in the folder of `--output`, and is there with that alone.
`attempt` of `attempts` is which of its task's runs in that command a run is, from 1, each row of seeds counted.
"""


SHAPES = {
    "run, resume, task run": '{"runs": [{"run_id", "task", "status", "kind", "scores": {verifier: number}, "score", '
    '"duration_seconds", "error", "context"}], "passed", "mean_score", "standard_error", "counted", "not_counted", '
    '"group_id", "not_started": [{"task", "attempt"}]}',
    "runs diff": '{"left", "right", "differences": {name: {"left", "right"}}} of two runs; of groups {"left", "right", '
    '"tasks": {task: {"left": TALLY, "right": TALLY, "change"}}}, the last of several tasks is `all tasks`',
    "TALLY": "runs, counted, passed, mean, standard_error, not_counted; null where a side has no run of the task",
    "runs list": '{"runs": [RUN]}, newest first',
    "runs show": "RUN with task_digest, bundle, seed, options, notes, owner, steps, resources, used: [{collection, id, version, digest}], "
    "where an image (collection images) has no version and the digest of its content",
    "runs trajectory": '{"run_id", "prompts": [{"prompt_id", "step_id", "agent", "model", "state", "error", "tool_calls", "usage", '
    '"response", "turns": [{"turn", "state", "format", "normalised", "problem", "events": [{"type": message, reasoning, tool_call, '
    "tool_result, usage, error or end, …}]}]}]}",
    "runs teardown": '{"removed", "absent", "failed", "left"}',
    "gc": '{"dry_run", "sandboxes": {"removed", "absent", "failed", "left"}, "folders", "objects": {"count", "bytes"}, '
    '"images": {"built", "layers", "unpacked", "bytes"}, "kept", "left": {sandbox: {"why": live, kept, '
    'resumable or elsewhere, "run_id"}}, "unreachable"}',
    "image list": '{"engine", "images": [{"id", "names", "sources", "platform", "size_bytes", "unique_bytes", "last_used", "containers", '
    '"children", "foreign_names"}], "unpacked": [{"id", "location", "digest", "bytes", "last_used", "pins"}]}; '
    "`engine` says why it could not be asked",
    "image gc": '{"dry_run", "engine", "images": {"removed": [{"id", "names", "bytes"}], "layers": [id], "kept": {id: why}}, '
    '"unpacked": {"removed": [{"id", "location"}], "bytes", "leavings", "kept", "busy"}, "wheelhouses": [key]}',
    "image build, image pull": '{"id", "name", "pinned", "sources", "platform", "size_bytes"}',
    "image pull --unpack": '{"id", "location", "digest", "root", "layers", "entrypoint", "cmd", "env", "user", "workdir", "ports", '
    '"volumes", "platform", "owners", "skipped"}',
    "image push": '{"name", "pinned"}',
    "RUN": "run_id, task, task_version, status, interrupted, outcome, kind, scores, score, created_at, started_at, finished_at, "
    "duration_seconds, error, instance_id, group_id, attempt, attempts",
}


def reference() -> str:
    """The page of the command line."""
    rows = [f"| {name} | `{shape}` |" for name, shape in SHAPES.items()]
    return "\n".join([PREFACE, "| command | object |\n|---|---|", *rows, "", *_sections()]).rstrip() + "\n"


def steps_page() -> str:
    """The page of the step types."""
    from agent_env.steps.contract import Step
    from agent_env.steps.reference import fields_of, parts_of, said, step_reference
    from agent_env.steps.registry import BUILT, step_class

    models = list(parts_of([Step, *map(step_class, BUILT)]))
    parts = {part.__name__ for part in models}
    page = ["# Steps\n", "Generated from the code by `python -m agent_env.cli.reference`.\n", "Every step has these fields:\n"]
    page += _fields(fields_of(Step), parts)
    for step in step_reference():
        page += [f"## `{step.type}`\n", f"{step.doc}\n", f"When it was cut half-way, a resume does: **{step.on_resume}**.\n"]
        page += _fields(step.fields, parts)
    page += ["## Parts of steps\n", "What the types above name: objects, each with these fields.\n"]
    for part in models:
        page += [f"### {part.__name__}\n", f"{said(part)}\n", *_fields(fields_of(part), parts)]
    return "\n".join(page).rstrip() + "\n"


def outcomes_page() -> str:
    """The page of what endings mean."""
    from agent_env.documents.outcomes import outcomes_table
    from agent_env.documents.scoring import SCORING

    return f"# Outcomes\n\nGenerated from the code by `python -m agent_env.cli.reference`.\n\n{outcomes_table()}\n{SCORING}"


CONFIGURATION = """\
# Configuration

Generated from the code by `python -m agent_env.cli.reference`. A variable beats the working tree's `.agentenv/config.toml`, which beats the
user's `~/.config/agent-env/config.toml`. `model.default` is the key `default` of the table `[model]`. `agent-env config explain KEY` says
what holds here and why; `agent-env config init` writes a file to start from. In a file, `env:NAME` or `env:NAME?DEFAULT` stands for the
value of a variable, of whatever key. The column *untrusted* says what a working tree's file may say before it is trusted, which is nothing
where it is empty: [Secrets and trust](../how-to/secrets-and-trust.md).
"""


def configuration_page() -> str:
    """The page of configuration keys."""
    from agent_env.config.keys import LIMIT_PREFIX, rule_of
    from agent_env.config.said import every_key, said_of
    from agent_env.config.untrusted import allowed_values

    rows = []
    for key in every_key():
        rule = rule_of(key)
        default = "" if rule is None or rule.default is None else f"`{json.dumps(rule.default)}`"
        variable = f"`{rule.variable}`" if rule is not None and rule.variable else ""
        reference = " May be a reference (`env:NAME`, `secret:KEY`)." if rule is not None and rule.reference else ""
        rows.append((key, f"| `{key}` | {default} | {variable} | {allowed_values(key) or ''} | {said_of(key)}{reference} |"))
    keys = [row for key, row in rows if not key.startswith(LIMIT_PREFIX)]
    limits = [row for key, row in rows if key.startswith(LIMIT_PREFIX)]
    head = ["| key | built in | variable | untrusted | |", "|---|---|---|---|---|"]
    told = "Seconds, bytes and counts, as their names say. Numbers marked (reference) are the published system's."
    return "\n".join([CONFIGURATION, *head, *keys, "", "## Limits\n", f"{told}\n", *head, *limits]) + "\n"


PAGES = {"cli.md": reference, "steps.md": steps_page, "outcomes.md": outcomes_page, "configuration.md": configuration_page}


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


def _fields(fields: Sequence[FieldReference], parts: Collection[str]) -> list[str]:
    """A table of fields; what they are made of is linked."""
    if not fields:
        return []
    linked = re.compile(rf"\b({'|'.join(parts)})\b")
    rows = []
    for field in fields:
        default = "needed" if field.required else f"`{json.dumps(field.default)}`"
        cells = (f"`{field.name}`", linked.sub(lambda found: f"[{found[1]}](#{found[1].lower()})", field.type), default, field.description)
        rows.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return ["| field | type | default | |\n|---|---|---|---|", *rows, ""]


if __name__ == "__main__":
    if len(sys.argv) > 1:
        write_pages(Path(sys.argv[1]))
    else:
        sys.stdout.write(reference())
