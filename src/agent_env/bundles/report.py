"""What the command line shows of a call: lines for people, and the documented JSON shapes. Plain data in, plain data out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from agent_env.bundles.installed import Installed
from agent_env.bundles.run import BundleRun, DryRun
from agent_env.wording import counted

Json = Any


def dry_run_report(dry: DryRun) -> dict[str, Json]:
    """`run --dry-run --json`."""
    plan = dry.plan
    return {
        "dry_run": True,
        "bundle": plan.bundle.name,
        "writes": [
            {"path": entry.name, "id": entry.id, "version": entry.version, "changed": entry.changed, "reasons": list(entry.reasons)}
            for entry in dry.written.entries
        ],
        "store_refs": [
            {"id": id, "collection": collection, "version": version} for (collection, id), version in sorted(plan.pinned.items())
        ],
        "tasks": [task.name for task in plan.tasks],
        "evals": [{"path": evaluation.name, "tasks": [plan.tasks[index].name for index in evaluation.tasks]} for evaluation in plan.evals],
        "skipped": list(plan.skipped),
        "runs": dry.runs,
        **({"resume": dry.earlier.to_json()} if dry.earlier is not None else {}),
        "warnings": [str(warning) for warning in plan.warnings],
    }


def dry_run_lines(dry: DryRun) -> Iterator[str]:
    """The same for people."""
    plan = dry.plan
    yield "Dry run: nothing is written or run."
    yield ""
    for entry in dry.written.entries:
        yield str(entry)
    if plan.pinned:
        yield ""
        yield "Store refs:"
        yield from (f"  {id} v{version}" for (_, id), version in sorted(plan.pinned.items()))
    yield ""
    if dry.earlier is not None:
        yield dry.earlier.said()
    begin = dry.runs if dry.earlier is None else dry.earlier.counts()["begin"]
    yield f"Would run {counted(begin, 'run')} of {counted(len(plan.tasks), 'task')}{dry.earlier.also() if dry.earlier else ''}:"
    yield from (f"  {task.name}: {counted(len(task.plan.steps), 'step')}" for task in plan.tasks)
    if plan.evals:
        yield ""
        yield "Evals:"
        yield from (f"  {evaluation.name}: {counted(len(evaluation.tasks), 'task')}" for evaluation in plan.evals)
    yield from _skipped(plan.skipped)


def summary_lines(call: BundleRun) -> Iterator[str]:
    """What stands below the table of runs: evals, skipped tasks, what was taken from an earlier call."""
    for evaluation in call.plan.evals:
        runs = call.of_eval(evaluation)
        failed = sum(run.outcome.status == "failed" for run in runs)
        cancelled = sum(run.outcome.status == "cancelled" for run in runs)
        passed = sum(run.outcome.passed for run in runs)
        extra = "".join(f", {count} {word}" for count, word in ((failed, "failed"), (cancelled, "cancelled")) if count)
        yield f"{evaluation.name}: {passed} of {len(runs)} passed{extra}"
    reused = sum(run.reused for run in call.runs)
    if reused:
        yield f"{counted(reused, 'run')} of an earlier call had ended already"
    yield from _skipped(call.plan.skipped)


def listing_report(bundles: Sequence[Installed]) -> list[dict[str, Json]]:
    """`run` without a bundle: what is installed."""
    from agent_env.bundles.model import BundleKind
    from agent_env.bundles.parse import read_bundle

    listed = []
    for installed in bundles:
        bundle = read_bundle(installed.folder, id_root=installed.id_root, name=installed.name).bundle
        counts = {kind: len(bundle.of(kind)) for kind in BundleKind}
        listed.append(
            {
                "name": installed.name,
                "package": installed.distribution,
                "contents": {str(kind): count for kind, count in counts.items() if count},
                "description": bundle.description,
                "folder": str(installed.folder),
            }
        )
    return listed


def first_sentence(text: str | None) -> str | None:
    """As much of a description as stands in a table."""
    return None if text is None else text if ". " not in text else f"{text.partition('. ')[0]}."


def _skipped(names: Sequence[str]) -> Iterator[str]:
    if names:
        yield f"Skipped, because no eval names them: {', '.join(names)}"
