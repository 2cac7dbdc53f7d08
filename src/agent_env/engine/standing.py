"""Steps on an environment that does not stand all the while: what such a step meets is no ending of its own, and no score."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent_env.errors import AgentEnvError, InfrastructureError, PlacementError, SandboxUnavailableError
from agent_env.steps.contract import OnResume
from agent_env.steps.targets import EnvironmentTarget

if TYPE_CHECKING:
    from agent_env.engine.run import AttemptRun
    from agent_env.environments.contract import Life, TellsLife
    from agent_env.steps.contract import Step, StepResult


async def carried_out(step: Step, run: AttemptRun) -> StepResult:
    """What a step returns. One that a resume repeats is repeated here too when something of its environment was started again meanwhile.

    Raises:
        SandboxUnavailableError: Something of its environment has ended, so that its own failure or score says nothing.
        Exception: As `Step.execute`.
    """
    live = await _environment(step, run)
    if live is None:
        return await step.execute(run)
    for _ in range(run.limits.environment_repeats):
        before = await live.life()
        try:
            result = await step.execute(run)
        except InfrastructureError:
            after = await live.life()
            if after.ended or after.started == before.started:
                raise
        except AgentEnvError as error:
            after = await live.life()
            _refuse_fallen(step, after, error)
            if after.started == before.started:
                raise
        else:
            if not result.scores():
                return result
            after = await live.life()
            _refuse_fallen(step, after)
            if after.started == before.started:
                return result
        run.progress("its environment was started again meanwhile: once more")
        await run.stop()
    often = run.limits.environment_repeats
    raise SandboxUnavailableError(f"its environment was started again each of the {often} times that step {step.id!r} was done")


def _refuse_fallen(step: Step, life: Life, error: AgentEnvError | None = None) -> None:
    if life.ended:
        said = f" ({error.message})" if error is not None else ""
        why = "; ".join(life.ended.values())
        fallen = SandboxUnavailableError(f"step {step.id!r} met an environment that does not stand{said}: {why}", concerns=step.id)
        fallen.evidence = error.evidence if error is not None else ()
        raise fallen from error


async def _environment(step: Step, run: AttemptRun) -> TellsLife | None:
    """The environment that a step is about, when it is there and can be asked."""
    target = getattr(step, "target", None)
    if step.on_resume is not OnResume.REPEAT or not isinstance(target, EnvironmentTarget):
        return None
    from agent_env.environments.contract import TellsLife

    try:
        live = await run.environment(target.env_id, target.step_id)
    except PlacementError:  # not deployed, which the step says in its own words
        return None
    return live if isinstance(live, TellsLife) else None
