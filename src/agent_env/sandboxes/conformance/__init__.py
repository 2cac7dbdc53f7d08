"""What every provider must do, as cases that any provider is run against: `agent-env provider check NAME`, or in a test of its own:

def test_it_conforms(provider_case):      # pytest --agent-env-provider NAME
    provider_case()
"""

from typing import TYPE_CHECKING

from agent_env.lazy import names_of

if TYPE_CHECKING:
    from agent_env.sandboxes.conformance.bench import Bench, MakeProvider, Subject
    from agent_env.sandboxes.conformance.case import Case, Result, Verdict, chosen
    from agent_env.sandboxes.conformance.cases import CASES
    from agent_env.sandboxes.conformance.running import judge, run_cases
    from agent_env.sandboxes.conformance.subject import subject_of

__all__ = ["CASES", "Bench", "Case", "MakeProvider", "Result", "Subject", "Verdict", "chosen", "judge", "run_cases", "subject_of"]

__getattr__, __dir__ = names_of(
    __name__,
    {
        "bench": ["Bench", "MakeProvider", "Subject"],
        "case": ["Case", "Result", "Verdict", "chosen"],
        "cases": ["CASES"],
        "running": ["judge", "run_cases"],
        "subject": ["subject_of"],
    },
)
