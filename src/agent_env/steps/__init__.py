"""Steps: one file a type, the contract that they keep, and the registry that knows them. Importing this room imports no step type."""

from agent_env.steps.contract import (
    Decision,
    EntityRef,
    OnResume,
    Plan,
    RetryConfig,
    Run,
    SandboxRequest,
    Step,
    StepResult,
    UnreadableError,
    apart,
)
from agent_env.steps.registry import Registry, parse_step, read_step, step_class
from agent_env.steps.targets import AgentTarget, EnvironmentTarget, SandboxTarget, Target

__all__ = [
    "AgentTarget",
    "Decision",
    "EntityRef",
    "EnvironmentTarget",
    "OnResume",
    "Plan",
    "Registry",
    "RetryConfig",
    "Run",
    "SandboxRequest",
    "SandboxTarget",
    "Step",
    "StepResult",
    "Target",
    "UnreadableError",
    "apart",
    "parse_step",
    "read_step",
    "step_class",
]
