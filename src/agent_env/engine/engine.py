"""The engine: submits, executes, resumes, cancels, tears down and collects. Every face of agent-env goes through it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Literal, Self

from agent_env.clock import Clock, SystemClock
from agent_env.defaults import Limits
from agent_env.documents.outcomes import Kind
from agent_env.documents.updates import Json
from agent_env.engine import control
from agent_env.engine.events import Event, Observer
from agent_env.engine.gc import Collector, GcReport
from agent_env.engine.history import ENDED, fold_of, outcome_of
from agent_env.engine.installation import Installation, installation_of
from agent_env.engine.options import Providers, RunOptions, Stores
from agent_env.engine.outcome import RunOutcome
from agent_env.engine.owned import House, OwnedRun, plan_of
from agent_env.engine.plan import TaskPlan
from agent_env.engine.preflight import Preflight, findings
from agent_env.engine.preflight_models import AgentNeeds, ModelsAsked, stored_needs
from agent_env.engine.resume import Choice, Resumption
from agent_env.engine.signals import Cancellation, to_its_end
from agent_env.engine.submission import learn_secrets, prepared
from agent_env.engine.teardown import KEPT_NOTE, TeardownReport, remove_context, remove_run
from agent_env.errors import InfrastructureError, RunOwnedError
from agent_env.places import Place
from agent_env.stores import handover
from agent_env.stores.owners import Owner
from agent_env.stores.records import OPEN_STATES, Lease

if TYPE_CHECKING:
    from agent_env.agents import LiveAgent
    from agent_env.config import Config
    from agent_env.environments import LiveEnvironment
    from agent_env.redaction import Redactor
    from agent_env.sandboxes.contract import Provider


class Engine:
    """Runs tasks. One engine serves any number of runs at once; several processes may share its database.

    Args:
        stores: The memory.
        providers: Name → sandbox provider; asked once for each name.
        config: Where state lives and which provider is the default.
        clock: Time.
        limits: None takes those of the configuration.
        redactor: Learns the secrets that runs resolve; None makes one.
    """

    def __init__(
        self,
        stores: Stores,
        providers: Providers,
        *,
        config: Config,
        clock: Clock | None = None,
        limits: Limits | None = None,
        redactor: Redactor | None = None,
    ) -> None:
        from agent_env.redaction import Redactor

        self.stores = stores
        self.installation: Installation = installation_of(config)
        self.redactor = redactor or Redactor()
        self._config = config
        self._make_provider = providers
        self._providers: dict[str, Provider] = {}
        self._live: dict[str, OwnedRun] = {}
        self._overrides: dict[str, Mapping[str, Json]] = {}
        self._plans: dict[str, TaskPlan] = {}
        """What was submitted here and waits to be executed; a resume reads it from the database instead."""
        self._house = House.of(
            config, stores, self.provider, self.installation, redactor=self.redactor, clock=clock or SystemClock(), limits=limits
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Lets go of providers. What runs in sandboxes goes on."""
        async with AsyncExitStack() as stack:
            for provider in self._providers.values():
                stack.push_async_callback(provider.aclose)
        self._providers.clear()

    def provider(self, name: str) -> Provider:
        """A provider of this engine's, which closes it."""
        if name not in self._providers:
            self._providers[name] = self._make_provider(name)
        return self._providers[name]

    async def submit(self, plan: TaskPlan, options: RunOptions | None = None) -> str:
        """Stores a run, ready to be executed. Nothing is started.

        Raises:
            ProblemsError: The seed's values don't fit the steps.
            UsageError: `start_step` or `end_step` is outside of the task.
        """
        options = options or RunOptions()
        learn_secrets(options.overrides, self.redactor)
        seeded, new = prepared(plan, options, self.redactor, self._keep)
        await self.stores.journal.create_run(new)
        if options.overrides:
            self._overrides[new.run_id] = options.overrides
        self._plans[new.run_id] = seeded
        return new.run_id

    def _keep(self, value: str) -> str:
        self.redactor.add(value)
        return self.stores.secrets.keep(value)

    async def preflight(
        self,
        plans: Mapping[str, TaskPlan],
        overrides: Mapping[str, Json] | None = None,
        *,
        needs: AgentNeeds | None = None,
        replayed: bool = False,
    ) -> Preflight:
        """What can't be done of these tasks, with the reasons: known before anything starts, and without starting anything.

        Args:
            plans: File or id, as messages will name it → task.
            overrides: `user_overrides` of their runs.
            needs: Which agents take credentials of models; None asks the stored ones.
            replayed: The answers of models come from a recording.
        """
        house = self._house
        asked = ModelsAsked(house.models, needs or stored_needs(self.stores.documents), str(house.agents.agent_id), replayed)
        return await findings(
            plans,
            self.provider,
            self.stores.secrets,
            default=house.default_provider,
            overrides=overrides or {},
            limits=house.limits,
            privileges=house.privileges,
            asked=asked,
        )

    async def execute(self, run_id: str, observer: Observer | None = None) -> RunOutcome:
        """Runs a submitted run to its end, and removes its places unless they are to be kept.

        Cancelling the caller cancels the run: once cleans up, twice stops the clean-up.

        Raises:
            NotFoundError: There is no such run.
            RunOwnedError: Another process runs it.
            SupersededError: Another process took it over.
        """
        return await self._own(run_id, observer, Resumption())

    async def resume(
        self,
        run_id: str,
        *,
        redeploy: bool = False,
        keep: bool = False,
        pause_on_failure: bool = False,
        observer: Observer | None = None,
        choices: Mapping[str, Choice | str] | None = None,
        overrides: Mapping[str, Json] | None = None,
        takeover: bool = False,
    ) -> RunOutcome:
        """Goes on with a run at its first unfinished step. Of a completed one, only what its end had not removed yet is removed.

        Args:
            run_id: The run.
            redeploy: Make places that are gone again, and repeat what had been done in them. Those that the run's own end removed, because
                it was cancelled or failed and kept nothing, are made again in any case.
            keep: Leave the places when the run has ended by itself, also when it was not begun so.
            pause_on_failure: Leave them when it has failed, also when it was not begun so.
            observer: Watches.
            choices: Decisions about half-done steps that can't be resumed by themselves: `repeat` or `done`.
            overrides: Secrets of the overrides, which are not stored.
            takeover: Also from an owner that lives.

        Raises:
            ResumeRefusedError: A decision is needed.
            PlaceLostError: A place was lost; the hint says what `redeploy` would do again.
            RunOwnedError: Another process runs it.
        """
        if overrides:
            learn_secrets(overrides, self.redactor)
            self._overrides[run_id] = overrides
        decided = {step_id: Choice(choice) for step_id, choice in (choices or {}).items()}
        return await self._own(run_id, observer, Resumption(redeploy, decided, keep, pause_on_failure), takeover=takeover)

    async def _own(self, run_id: str, observer: Observer | None, asked: Resumption, *, takeover: bool = False) -> RunOutcome:
        if run_id in self._live:
            raise RunOwnedError(f"run {run_id} is running in this process already", concerns=run_id)
        known = self.stores.journal.run(run_id)
        if run_id not in self._plans and known.status == "completed":
            if not known.notes.get(KEPT_NOTE) and self.stores.journal.resources(run_id, state=OPEN_STATES):
                with suppress(RunOwnedError):  # whoever removes its places lives
                    await self.teardown(run_id)
            return self.outcome(run_id)
        cancellation = Cancellation()
        # The claim belongs to what runs to its end: cancelled half-way, it would leave a run that this living process owns and nobody runs.
        return await to_its_end(self._claimed(run_id, observer, asked, cancellation, takeover=takeover), cancellation)

    async def _claimed(
        self, run_id: str, observer: Observer | None, asked: Resumption, cancellation: Cancellation, *, takeover: bool
    ) -> RunOutcome:
        lease = await self.stores.journal.claim(run_id, takeover=takeover)
        overrides = self._overrides.get(run_id, {})
        plan = self._plans.pop(run_id, None)
        owned = OwnedRun(self._house, lease, cancellation, observer=observer, asked=asked, overrides=overrides, plan=plan)
        self._live[run_id] = owned
        try:
            return await owned.run()
        finally:
            del self._live[run_id]
            self._overrides.pop(run_id, None)

    def outcome(self, run_id: str) -> RunOutcome:
        """What is recorded of a run.

        Raises:
            NotFoundError: There is no such run.
        """
        return outcome_of(self.stores.journal.load(run_id))

    def context(self, run_id: str) -> Mapping[str, Json]:
        """A run's context document as committed: what `--context-json` reads."""
        return fold_of(self.stores.journal.load(run_id)).context

    async def cancel(self, run_id: str, *, by: str = "") -> bool:
        """Asks a run to stop, wherever it runs; asking twice stops its clean-up. Returns whether there was anything to stop.

        A run whose owner is dead is marked cancelled and torn down here.

        Raises:
            InfrastructureError: It is cancelled, but something that it had made could not be removed.
        """
        by = by or str(Owner.this_process())
        if (live := self._live.get(run_id)) is not None:
            live.cancellation.ask(f"cancelled by {by}")
            return True
        if self.stores.journal.run(run_id).status in ENDED:
            return False
        folder = control.run_folder(self.installation.state_root, run_id)
        if await control.ask(folder, {"do": "cancel", "reason": f"cancelled by {by}"}, limits=self._house.limits):
            return True
        try:
            lease = await self.stores.journal.claim(run_id)
        except RunOwnedError:
            await handover.ask_to_stop(self.stores.db, run_id, by)
            return True
        error = {"code": "cancelled", "message": f"cancelled by {by}", "step_id": None}
        await self.stores.journal.set_run(lease, status="cancelled", kind=str(Kind.CANCELLED), word="cancelled", error=error)
        report = await self._tear_down(lease)
        if report.failed or report.left:
            raise InfrastructureError(
                f"run {run_id} is cancelled, but not all that it made is gone ({report.why})",
                concerns=run_id,
                hint=f"agent-env runs teardown {run_id} tries again",
            )
        return True

    async def teardown(self, run_id: str) -> TeardownReport:
        """Removes what a run made. Idempotent, and safe from any process.

        Raises:
            RunOwnedError: It is running; cancel it first.
        """
        return await self._tear_down(await self.stores.journal.claim(run_id))

    async def _tear_down(self, lease: Lease) -> TeardownReport:
        sandboxes = self._house.sandboxes(lease, self.stores.journal.load(lease.run_id))
        return await remove_run(sandboxes, lease, self.stores.journal)

    async def teardown_context(self, context: Mapping[str, Json]) -> TeardownReport:
        """Removes what a context document names, and closes the rows that this database has of it.

        Raises:
            RunOwnedError: A live run uses one of the sandboxes.
        """
        ownership = self.installation.ownership
        return await remove_context(context, self.stores.journal, self.provider, ownership, limits=self._house.limits)

    async def gc(
        self,
        *,
        dry_run: bool = False,
        include_kept: bool = False,
        older_than_seconds: float | None = None,
        providers: Iterable[str] = (),
    ) -> GcReport:
        """Removes what belongs to no live run: sandboxes, folders of ended runs, unreferenced objects, images above their budget.
        Only this installation's.

        What was kept on purpose stays until it expires, and what an interrupted run can be resumed in for `Limits.gc_resumable_seconds`.

        Args:
            dry_run: Only say what would go.
            include_kept: Also all of that.
            older_than_seconds: Also that of runs whose last sign of life is longer ago than this.
            providers: Providers to ask beside the default one and those of open rows.
        """
        names = {*self._house.default_provider.replace(" ", "").split(","), *providers}
        patience = 0.0 if include_kept else older_than_seconds
        house = self._house
        collector = Collector(self.stores, self.provider, self.installation, house.limits, house.clock, names, patience, self._config)
        return await collector.collect(dry_run=dry_run)

    async def place_of_run(self, run_id: str, name: str | None = None) -> Place:
        """A place of a run, for a person to look at: a sandbox's, an agent's or a container's, by name. A run's owner keeps its hold on it.

        From now on this engine's redactor knows the secrets that the run's task refers to, as far as they still have a value.

        Args:
            run_id: The run; it may be going on.
            name: Which one; None is the only one.

        Raises:
            PlacementError: There is none of that name, or several.
        """
        from agent_env.engine.looking import place_of

        return await place_of(self._house, self.stores.journal.load(run_id), name)

    @asynccontextmanager
    async def environment_of_run(self, run_id: str, env_id: str | None = None) -> AsyncIterator[LiveEnvironment]:
        """A deployed environment of a run, for a person to look at. A run's owner keeps its hold on it.

        Args:
            run_id: The run; it may be going on.
            env_id: Which one, by its id or the last part of that; None is the only one.

        Raises:
            PlacementError: There is none of that name, or several.
            SandboxUnavailableError: It is not running.
        """
        from agent_env.engine.looking import environment_of

        async with environment_of(self._house, self.stores.journal.load(run_id), env_id) as live:
            yield live

    @asynccontextmanager
    async def agent_of_run(self, run_id: str, name: str | None = None) -> AsyncIterator[LiveAgent]:
        """A deployed agent of a run, to be spoken with. A run's owner keeps its hold on it.

        Raises:
            PlacementError: There is none of that name, or several and none is named.
            SandboxUnavailableError: It is not running.
        """
        from agent_env.engine.looking import agent_of

        async with agent_of(self._house, self.stores.journal.load(run_id), name) as live:
            yield live

    async def trajectory_of_run(self, run_id: str) -> AsyncGenerator[Mapping[str, Json], None]:
        """What the agents of a run record while they work, as they tell it: `agent`, `message_id`, `event`. Ends when the run is over.

        Prompts that were over before are in the run's record, and not told here.

        Raises:
            PlacementError: An agent is known to nobody.
        """
        from agent_env.engine.looking import recorded_meanwhile

        async with aclosing(recorded_meanwhile(self._house, run_id)) as events:
            async for event in events:
                yield event

    async def decide(self, run_id: str, step_id: str, decision: Literal["continue", "abort"], by: str) -> None:
        """Answers a waiting review, wherever its run is.

        Raises:
            NotFoundError: The step waits for nothing.
            ConcurrentModificationError: Somebody has answered.
        """
        if (live := self._live.get(run_id)) is not None:
            await live.decide(step_id, decision, by)
            return
        folder = control.run_folder(self.installation.state_root, run_id)
        request = {"do": "review", "step_id": step_id, "decision": decision, "by": by}
        if await control.ask(folder, request, limits=self._house.limits) is None:
            await self.stores.journal.decide(run_id, step_id, decision, by)

    async def events(self, run_id: str, *, after: int = 0) -> AsyncIterator[Event]:
        """A run's events past `after`: live to its end while it runs on this machine, else what is stored."""
        from agent_env.engine.looking import events_of

        async with aclosing(events_of(self._house, run_id, after)) as events:
            async for event in events:
                yield event

    def plan(self, run_id: str) -> TaskPlan:
        """The task that a run was stored with."""
        return plan_of(self.stores.journal.load(run_id), self.stores)
