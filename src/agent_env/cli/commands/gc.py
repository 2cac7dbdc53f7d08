"""`agent-env gc`: removing what belongs to no live run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from agent_env.cli.frame import Command
from agent_env.cli.output import json_option, line, note, write_json
from agent_env.cli.session import opened_engine, run_async
from agent_env.errors import UsageError
from agent_env.wording import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from agent_env.engine import GcReport


@click.command(cls=Command)
@click.option("--dry-run", is_flag=True, help="Say what would be removed, and remove nothing.")
@click.option("--all", "--kept", "everything", is_flag=True, help="Also what was kept on purpose, and what interrupted runs go on in.")
@click.option("--older-than", metavar="TIME", help="The same, of runs without a sign of life for this long: 90s, 30m, 12h, 7d.")
@json_option
def gc(dry_run: bool, everything: bool, older_than: str | None, as_json: bool) -> int:
    """Remove what belongs to no live run: sandboxes, work folders, stored bytes that nothing refers to, images above their budget.

    What was kept (--keep, --pause-on-failure) stays until it expires, and what an interrupted run can be resumed in for a day
    (limits.gc_resumable_seconds). Of images go layers of failed builds, and the least recently used ones that agent-env built or
    unpacked, as `image gc` would. Only what carries this installation's labels is touched.
    """
    if everything and older_than is not None:
        raise UsageError("--all and --older-than exclude each other")
    seconds = _seconds(older_than) if older_than is not None else None

    async def work() -> GcReport:
        async with opened_engine() as engine:
            return await engine.gc(dry_run=dry_run, include_kept=everything, older_than_seconds=seconds)

    report = run_async(work)
    if as_json:
        write_json(report.to_json())
    else:
        _show(report)
    return 0 if report.clean else 1


def _show(report: GcReport) -> None:
    done = "would be removed" if report.dry_run else "removed"
    sandbox = {name: f"sandbox {name}{f' of {report.runs[name]}' if name in report.runs else ''}" for name in report.sandboxes.names}
    for name in report.sandboxes.removed:
        line(f"{sandbox[name]}: {done}")
    for name, why in report.sandboxes.failed.items():
        line(f"{sandbox[name]}: still there: {why}")
    for name in report.sandboxes.left:
        line(f"{sandbox[name]}: left")
    if report.folders:
        line(f"scratch folders of {counted(len(report.folders), 'ended run')}: {done}: {_named(report.folders)}")
    if report.objects:
        line(f"{report.objects} stored objects, {report.objects_bytes} bytes: {done}")
    _show_images(report, done)
    for name, why in report.unreachable.items():
        line(f"{name if name == 'images' else f'provider {name}'} could not be asked: {why}")
    found = (report.sandboxes.removed, report.sandboxes.failed, report.folders, report.objects, report.images, report.unreachable)
    if not any(found):
        line("nothing to remove")
    for said in _left(report):
        note(said)


def _show_images(report: GcReport, done: str) -> None:
    if report.images is None:
        return
    for name in report.images.built:
        line(f"image {name}: {done}")
    if report.images.layers:
        line(f"layers of failed or removed builds: {report.images.layers} {done}")
    for name in report.images.unpacked:
        line(f"unpacked image {name}: {done}")


def _left(report: GcReport) -> Iterator[str]:
    """What stays, a quiet line for each reason, with its runs and what to do about it."""
    from agent_env.engine.gc import Claim

    for claim in Claim:
        if runs := report.runs_left(claim):
            what, command, end = _WHY[str(claim)]
            todo = f" (agent-env {command} {runs[0] if len(runs) == 1 else 'RUN'}{end})" if command else ""
            removed = "" if claim in {Claim.LIVE, Claim.ELSEWHERE} else "; agent-env gc --all removes them"
            yield f"left: sandboxes of {counted(len(runs), what)}{todo}: {_named(runs)}{removed}"


def _named(names: Sequence[str]) -> str:
    further = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return f"{', '.join(names[:_MOST_NAMED])}{further}"


_MOST_NAMED = 20
_WHY = {
    "live": ("live run", "", ""),
    "kept": ("kept run", "runs teardown", " removes them"),
    "resumable": ("interrupted run", "resume", " goes on in them"),
    "elsewhere": ("run of another installation, of which this state folder is a copy", "runs teardown", " says where that is"),
}
"""Reason → what the runs are, and the command that does something about it, with what that does."""
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def _seconds(text: str) -> float:
    import re

    found = re.fullmatch(r"(\d{1,9})([smhd])", text.strip().lower())
    if found is None:
        raise UsageError(f"--older-than {text!r} is no time", hint="write a number and s, m, h or d: 90s, 30m, 12h, 7d")
    return float(int(found[1]) * _UNITS[found[2]])
