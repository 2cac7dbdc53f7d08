"""Bundles: folders of tasks and of what they need, read, resolved, planned, written and run.

Importing one name does not import the rest: `bundle new` pays for neither engine nor stores.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent_env.lazy import names_of

if TYPE_CHECKING:
    from agent_env.bundles.calls import Earlier as Earlier
    from agent_env.bundles.importer import Imported as Imported
    from agent_env.bundles.importer import import_task as import_task
    from agent_env.bundles.installed import Found as Found
    from agent_env.bundles.installed import Installed as Installed
    from agent_env.bundles.installed import find_bundle as find_bundle
    from agent_env.bundles.installed import installed_bundles as installed_bundles
    from agent_env.bundles.materialising import Written as Written
    from agent_env.bundles.materialising import WrittenEntry as WrittenEntry
    from agent_env.bundles.materialising import materialise as materialise
    from agent_env.bundles.model import Bundle as Bundle
    from agent_env.bundles.model import BundleKind as BundleKind
    from agent_env.bundles.model import Entry as Entry
    from agent_env.bundles.model import Settings as Settings
    from agent_env.bundles.new import new_bundle as new_bundle
    from agent_env.bundles.parse import parse_bundle as parse_bundle
    from agent_env.bundles.parse import read_bundle as read_bundle
    from agent_env.bundles.plan import plan_bundle as plan_bundle
    from agent_env.bundles.plan import plan_bundle_named as plan_bundle_named
    from agent_env.bundles.plan import plan_folder as plan_folder
    from agent_env.bundles.planned import BundlePlan as BundlePlan
    from agent_env.bundles.planned import PlannedTask as PlannedTask
    from agent_env.bundles.report import dry_run_lines as dry_run_lines
    from agent_env.bundles.report import dry_run_report as dry_run_report
    from agent_env.bundles.report import listing_report as listing_report
    from agent_env.bundles.report import summary_lines as summary_lines
    from agent_env.bundles.resolve import resolve_bundle as resolve_bundle
    from agent_env.bundles.run import BundleObserver as BundleObserver
    from agent_env.bundles.run import BundleRun as BundleRun
    from agent_env.bundles.run import BundleRunRequest as BundleRunRequest
    from agent_env.bundles.run import DryRun as DryRun
    from agent_env.bundles.run import TaskRun as TaskRun
    from agent_env.bundles.run import dry_run as dry_run
    from agent_env.bundles.run import run_bundle as run_bundle
    from agent_env.bundles.verdict import Result as Result
    from agent_env.bundles.verdict import Verdict as Verdict
    from agent_env.bundles.work import WorkItem as WorkItem
    from agent_env.bundles.work import default_concurrency as default_concurrency

_MODULES = {
    "calls": ("Earlier",),
    "importer": ("Imported", "import_task"),
    "installed": ("Found", "Installed", "find_bundle", "installed_bundles"),
    "materialising": ("Written", "WrittenEntry", "materialise"),
    "model": ("Bundle", "BundleKind", "Entry", "Settings"),
    "new": ("new_bundle",),
    "parse": ("parse_bundle", "read_bundle"),
    "plan": ("plan_bundle", "plan_bundle_named", "plan_folder"),
    "planned": ("BundlePlan", "PlannedTask"),
    "report": ("dry_run_lines", "dry_run_report", "listing_report", "summary_lines"),
    "resolve": ("resolve_bundle",),
    "run": ("BundleObserver", "BundleRun", "BundleRunRequest", "DryRun", "TaskRun", "dry_run", "run_bundle"),
    "verdict": ("Result", "Verdict"),
    "work": ("WorkItem", "default_concurrency"),
}

__getattr__, __dir__ = names_of(__name__, _MODULES)
