"""The engine: the graph of steps, the journal's use, resume, retries, cancellation, teardown, collection and progress events."""

from agent_env.engine.engine import Engine
from agent_env.engine.events import Event, Observer
from agent_env.engine.gc import GcReport
from agent_env.engine.installation import Installation, installation_of
from agent_env.engine.options import RunOptions, Stores
from agent_env.engine.outcome import RunOutcome, Word, word_of
from agent_env.engine.plan import TaskPlan, plan_document, plan_task
from agent_env.engine.resume import Choice
from agent_env.engine.teardown import TeardownReport, teardown_run

__all__ = [
    "Choice",
    "Engine",
    "Event",
    "GcReport",
    "Installation",
    "Observer",
    "RunOptions",
    "RunOutcome",
    "Stores",
    "TaskPlan",
    "TeardownReport",
    "Word",
    "installation_of",
    "plan_document",
    "plan_task",
    "teardown_run",
    "word_of",
]
