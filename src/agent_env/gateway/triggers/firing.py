"""What a fire does: one action after the other, each told as it ends."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Protocol

from agent_env_sdk.wire.clock import instant, parse_duration

from agent_env.gateway import jsontext
from agent_env.gateway.calls import Calls
from agent_env.gateway.catalogue import Catalogue
from agent_env.gateway.triggers import timing, values
from agent_env.gateway.triggers.armed import Armed, Cause, Progress
from agent_env.gateway.triggers.executors import ExecutorError, Instruction, carry_out
from agent_env.gateway.triggers.grammar import Action, Check, Executor, InstructionAction, PermissionAction, ToolAction
from agent_env.gateway.triggers.patterns import SlowPatternError
from agent_env.gateway.triggers.roster import Roster

_DIGEST_CHARACTERS = 16
_AGAIN = (
    "\n\nYour previous attempt did not pass verification: the expected change can't be seen in the environment. "
    "Do it again exactly as described."
)


class ActionError(Exception):
    """An action failed; the text says how."""


class Tell(Protocol):
    """Adds to the log of events."""

    def __call__(self, kind: str, trigger: Armed, **more: Any) -> None: ...


class Firing:
    """Carries actions out. See the module.

    Args:
        calls: Makes tool calls.
        catalogue: Which tools there are.
        axis: Virtual seconds.
        roster: Keeps how far a fire is, and knows the agents that may be asked.
        tell: The log of events.
    """

    def __init__(self, calls: Calls, catalogue: Catalogue, axis: timing.Axis, roster: Roster, tell: Tell) -> None:
        self._calls = calls
        self._catalogue = catalogue
        self._axis = axis
        self._roster = roster
        self._tell = tell
        self._limits = calls.limits
        self.realizing: dict[str, list[dict[str, Any]]] = {}
        """Executor's role → the fires that it is carrying out now."""

    async def actions(self, trigger: Armed, cause: Cause, progress: Progress) -> int | None:
        """Carries out all actions from where the fire is. The place of the one that failed; None where none did.

        What the journal says is done is not done again. Of an action that it says was begun nothing more is known: where its verification
        holds it is done, else it is done again, with the key that it was asked for by.
        """
        while progress.place < len(trigger.spec.actions):
            place = progress.place
            action = trigger.spec.actions[place]
            if action.delay is not None and not progress.begun:
                await self._delay(trigger, progress, action, cause.since)
            before = await self._calls.position()
            try:
                detail = await self._begun(trigger, progress, action, cause)
            except (ActionError, values.UnfilledError, SlowPatternError) as error:
                self._tell("action_failed", trigger, action_index=place, detail=str(error), **_named(action))
                return place
            span = {"changelog_id_before": before, "changelog_id_after": await self._calls.position()}
            self._tell("action_ok", trigger, action_index=place, detail=detail, **span)
            trigger.progress = progress = Progress(progress.key, place + 1)
            self._roster.note(trigger)
            await self._roster.secure()
        return None

    async def _begun(self, trigger: Armed, progress: Progress, action: Action, cause: Cause) -> dict[str, Any]:
        if not progress.begun:
            progress.begun = True
            self._roster.note(trigger)
            await self._roster.secure()
        elif action.verify is not None and not progress.again:
            acting = action.acting if isinstance(action, ToolAction) else None
            if await self.check(action.verify, cause.context, acting):
                self._tell("verify_ok", trigger, action_index=progress.place)
                return {"verified": "it was done before the gateway was started again"}
        return await self._action(trigger, progress, action, cause)

    async def check(self, check: Check, context: Mapping[str, Any], role: str | None = None) -> bool:
        """Runs a check's steps to its predicate."""
        bindings: dict[str, Any] = {}
        for look in check.steps:
            result = await self._call(look.tool, values.filled(look.args, bindings, context), role, self._limits.trigger_read_seconds)
            if result.get("isError") is True:
                return False
            text = values.result_text(result)
            value = await values.extracted(look.extract, values.result_value(result), text, self._limits)
            if look.bind is not None:
                if values.is_nothing(value):
                    return False
                bindings[look.bind] = value
            if look.predicate is not None and not await values.holds(look.predicate, value, self._limits):
                return False
        return True

    async def _action(self, trigger: Armed, progress: Progress, action: Action, cause: Cause) -> dict[str, Any]:
        place = progress.place
        match action:
            case PermissionAction():
                await self._calls.ruling.change_access(action.action, {"role": action.role, "tools": action.tools})
                detail: dict[str, Any] = {"role": action.role, "action": action.action, "tools": action.tools}
                acting = None
            case ToolAction():
                detail, acting = await self._tool(trigger, progress, action, cause), action.acting
            case InstructionAction():
                await self._instruct(trigger, progress, action, cause)
                return {"nl": action.instruction[:120], **_named(action)}
        if action.verify is not None and not await self._verified(trigger, place, action.verify, cause, acting):
            raise ActionError("its verification did not hold")
        return detail

    async def _tool(self, trigger: Armed, progress: Progress, action: ToolAction, cause: Cause) -> dict[str, Any]:
        place = progress.place
        arguments = values.filled(action.args, {}, cause.context)
        before = await self._calls.position()
        key = f"{progress.key}-{place}"
        result = await self._call(action.tool, arguments, action.acting, self._limits.call_seconds, key=key)
        after = await self._calls.position()
        text, failed = values.result_text(result), result.get("isError") is True
        shown = values.shapes(arguments)
        event = self._calls.trajectory.add(
            "internal_tool_call",
            {
                "source": "trigger_engine",
                "trigger_id": trigger.id,
                "action_index": place,
                "tool": action.tool,
                "arguments": shown,
                "as": action.acting,
                "ok": not failed,
                "result_len": len(text),
                "result_sha256": hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:_DIGEST_CHARACTERS],
                "changelog_id_before": before,
                "changelog_id_after": after,
                **self._calls.ruling.virtual_time(),
            },
        )
        actor = {"kind": "trigger_action", "event_id": event, "trigger_id": trigger.id, "action_index": place, "tool": action.tool}
        self._calls.windows.add(before, after, {**actor, "as": action.acting})
        if failed:
            raise ActionError(f"{action.tool}: {text}")
        return {"tool": action.tool, "args": shown, **({"as": action.acting} if action.acting else {})}

    async def _call(self, tool: str, arguments: Any, role: str | None, seconds: float, *, key: str | None = None) -> dict[str, Any]:
        await self._catalogue.settle(self._limits.discovery_seconds)
        entry = self._catalogue.get(tool)
        if entry is None:
            raise ActionError(f"unknown tool {tool!r}")
        answer = await self._calls.internal(role, entry, json.dumps(arguments), seconds, key=key)
        if answer.fault is not None or answer.result is None:
            raise ActionError(f"{tool}: {answer.fault or answer.error}")
        result = jsontext.value_of(answer.result)
        return result if isinstance(result, dict) else {}

    async def _verified(self, trigger: Armed, place: int, check: Check, cause: Cause, role: str | None) -> bool:
        ok = await self.check(check, cause.context, role)
        self._tell("verify_ok" if ok else "verify_failed", trigger, action_index=place)
        return ok

    async def _instruct(self, trigger: Armed, progress: Progress, action: InstructionAction, cause: Cause) -> None:
        executor = self._roster.watch.executors.get(action.executor)
        if executor is None:
            raise ActionError("its executor is not registered any more")
        if executor.hours is not None and progress.task is None:
            await self._open_hours(trigger, progress.place, action, executor)
        fire = {"trigger_id": trigger.id, "action_index": progress.place, "fire": trigger.attempts}
        realizing = self.realizing.setdefault(executor.role, [])
        realizing.append(fire)
        try:
            while True:
                await self._carried_out(trigger, progress, action, executor)
                if action.verify is None or await self._verified(trigger, progress.place, action.verify, cause, None):
                    return
                if progress.again:
                    break
                progress.again, progress.task = True, None
                self._roster.note(trigger)
                await self._roster.secure()
        except ExecutorError as error:
            raise ActionError(str(error)) from error
        finally:
            realizing.remove(fire)
        raise ActionError("its verification did not hold after a second attempt")

    async def _carried_out(self, trigger: Armed, progress: Progress, action: InstructionAction, executor: Executor) -> None:
        """An executor that has the instruction is asked for its task alone; one that may have it hears it by the same key."""

        async def taken(task: str) -> None:
            progress.task = task
            self._roster.note(trigger)
            await self._roster.secure()

        instruction = Instruction(
            text=action.instruction + (_AGAIN if progress.again else ""),
            context_id=f"trigger-{trigger.id}",
            message_id=f"{progress.key}-{progress.place}-{int(progress.again)}",
            task=progress.task,
        )
        await carry_out(executor, instruction, taken, self._limits)

    async def _delay(self, trigger: Armed, progress: Progress, action: Action, since: float) -> None:
        place = progress.place
        if progress.due is None:
            seconds = trigger.delays[place].next() if place in trigger.delays else parse_duration(action.delay).total_seconds()
            self._tell("delayed", trigger, action_index=place, virtual_seconds=round(seconds, 3), **_named(action))
            progress.due = since + seconds
            self._roster.keep(trigger)
        trigger.waiting = True
        try:
            await self._axis.until(progress.due)
        finally:
            trigger.waiting = False

    async def _open_hours(self, trigger: Armed, place: int, action: InstructionAction, executor: Executor) -> None:
        """Waits for the executor's working hours; without a clock there are none."""
        hours = executor.hours
        told: int | None = None
        trigger.waiting = True
        try:
            while hours is not None and (now := self._axis.now()) is not None:
                generation = self._axis.generation
                where = timing.zone(hours.time_zone, hours.utc_offset or "+00:00")
                opening = timing.opens(now, hours.start, hours.end, hours.days, where)
                if opening is None:
                    return
                if told != generation:
                    told = generation
                    self._tell("deferred", trigger, action_index=place, until=instant(opening), **_named(action))
                seconds = (opening - now).total_seconds()
                await self._axis.until(self._axis.elapsed() + seconds, generation=generation)
        finally:
            trigger.waiting = False


def _named(action: Action) -> dict[str, Any]:
    match action:
        case InstructionAction() if action.executor is not None:
            return {"executor": action.executor}
        case ToolAction():
            return {"tool": action.tool}
        case _:
            return {}
