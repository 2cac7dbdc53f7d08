"""`agent-env gc`: removing what belongs to no live run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from agent_env.cli.frame import Command
from agent_env.cli.output import json_option, line, write_json
from agent_env.cli.session import opened_engine, run_async

if TYPE_CHECKING:
    from agent_env.engine import GcReport


@click.command(cls=Command)
@click.option("--dry-run", is_flag=True, help="Say what would be removed, and remove nothing.")
@click.option("--kept", is_flag=True, help="Also what was kept on purpose (--keep, --pause-on-failure).")
@json_option
def gc(dry_run: bool, kept: bool, as_json: bool) -> int:
    """Remove what belongs to no live run: sandboxes, work folders, stored bytes that nothing refers to.

    Only what carries this installation's labels is touched.
    """

    async def work() -> GcReport:
        async with opened_engine() as engine:
            return await engine.gc(dry_run=dry_run, include_kept=kept)

    report = run_async(work)
    if as_json:
        write_json(report.to_json())
    else:
        _show(report)
    return 0 if report.clean else 1


def _show(report: GcReport) -> None:
    done = "would be removed" if report.dry_run else "removed"
    for name in report.sandboxes.removed:
        line(f"sandbox {name}: {done}")
    for name, why in report.sandboxes.failed.items():
        line(f"sandbox {name}: still there: {why}")
    for name in report.sandboxes.left:
        line(f"sandbox {name}: left")
    for name in report.folders:
        line(f"folder of run {name}: {done}")
    if report.objects:
        line(f"{report.objects} stored objects, {report.objects_bytes} bytes: {done}")
    for name, why in report.unreachable.items():
        line(f"provider {name} could not be asked: {why}")
    if report.kept:
        line(f"left, because their run is live or was kept: {', '.join(report.kept)}")
    if not (report.sandboxes.removed or report.sandboxes.failed or report.folders or report.objects or report.unreachable or report.kept):
        line("nothing to remove")
