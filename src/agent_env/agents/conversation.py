"""One turn with an agent, from its message to its ending, whatever becomes of the connection in between.

A message is worked on once: it is sent again only where it certainly did not arrive, or where the agent knows messages by their ids.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Any

from agent_env_sdk.wire.a2a import (
    TASK_NOT_FOUND,
    UNSUPPORTED_OPERATION,
    AgentCard,
    ArtifactUpdate,
    Message,
    Method,
    StatusUpdate,
    Task,
    TaskState,
)
from agent_env_sdk.wire.a2a import Update as A2aUpdate
from agent_env_sdk.wire.agent_extensions import (
    AGENT_CONFIG,
    TRAJECTORY,
    card_request_accepts,
    method_of,
    remembers_messages,
    takes_message_config,
)
from agent_env_sdk.wire.parts import TextPart
from agent_env_sdk.wire.rpc import METHOD_NOT_FOUND, RpcError
from pydantic import ValidationError

from agent_env.agents.answers import Heard, lost, refused, turn_of
from agent_env.agents.client import AgentClient
from agent_env.agents.contract import Accepted, End, Ended, Outgoing, Progress, Turn, Update
from agent_env.agents.faults import AgentFailedError, AgentUnreachableError, PromptUncertainError
from agent_env.errors import AgentEnvError, DeadlineError, InfrastructureError, SandboxUnavailableError
from agent_env.waiting import back_off, deadline, poll, shielded

Json = Any
Alive = Callable[[], Awaitable[None]]
"""Raises `SandboxUnavailableError` when the agent's place has ended."""
_NOT_THERE = 404
_SERVER_ERROR = 500
_NO_RESUBSCRIBING = frozenset({METHOD_NOT_FOUND, UNSUPPORTED_OPERATION})
_OWN_TIMEOUT = "agent.timeout"
"""How agents of our SDK call a turn that they ended because its time was over."""


async def patient_card(client: AgentClient, alive: Alive) -> AgentCard:
    """An agent's card, also of one that is just being started again and answers in a moment.

    Raises:
        AgentUnreachableError: It does not answer.
        AgentFailedError: It has none.
        SandboxUnavailableError: Its place is over.
    """
    attempt = 1
    while True:
        try:
            return await client.card()
        except AgentUnreachableError:
            await alive()
            attempt += 1
            if attempt > client.limits.agent_send_attempts:
                raise
        await back_off(attempt, limits=client.limits)


class Conversation:
    """One turn.

    Args:
        client: Speaks with the agent.
        message: What is said.
        alive: Looks whether the agent's place still runs.
        config: Settings that go with the message itself.
        missed: Why the agent could not be asked what it takes, which is then what becomes of the turn.
    """

    def __init__(
        self,
        client: AgentClient,
        message: Outgoing,
        *,
        alive: Alive,
        config: dict[str, Json] | None = None,
        missed: AgentEnvError | None = None,
    ) -> None:
        self._client, self._message, self._alive = client, message, alive
        self._config = config or {}
        self._missed = missed
        self._limits = client.limits
        self._heard = Heard(message.message_id, message.context_id, limit_bytes=client.limits.agent_answer_bytes)
        self._streams = False
        self._turn: Turn | None = None

    async def updates(self) -> AsyncGenerator[Update, None]:
        """Everything up to the ending. Closed or cancelled before that, it cancels the task at the agent."""
        steps, until = self._steps(), time.monotonic() + self._seconds
        over = False
        try:
            while self._turn is None:
                update = await self._next(steps, until)
                if update is not None:
                    yield update
            over = True
        finally:
            await steps.aclose()
            if not over and self._heard.task_id is not None:
                await shielded(self._give_up(), seconds=self._limits.agent_cancel_seconds, what="cancelling the agent's task")
        yield Ended(self._turn)

    @property
    def _seconds(self) -> float:
        """An agent that knows the limit says itself that it was over, and what it had: it gets a little longer for that."""
        return self._message.timeout_seconds + self._limits.answer_margin_seconds

    async def _next(self, steps: AsyncGenerator[Update, None], until: float) -> Update | None:
        """The next update; None once there is an ending."""
        scope = asyncio.timeout(max(until - time.monotonic(), 0))
        try:
            async with scope:
                return await anext(steps, None)
        except TimeoutError:
            if not scope.expired():
                raise
            self._turn = await self._timed_out()
        except RpcError as error:
            self._turn = refused(self._heard, f"rpc_{error.code}", error.message)
        except AgentFailedError as error:
            self._turn = refused(self._heard, error.reason or error.code, str(error))
        except InfrastructureError as error:
            self._turn = lost(self._heard, error)
        return None

    # the steps of a turn

    async def _steps(self) -> AsyncGenerator[Update, None]:
        if self._missed is not None:
            raise self._missed
        card = await patient_card(self._client, self._alive)
        self._streams = bool(card.capabilities.streaming)
        earlier = await self._earlier(card)
        if earlier is not None:
            self._heard.gap = True
            for update in self._observed(earlier):
                yield update
        else:
            async with aclosing(self._sent(card)) as updates:
                async for update in updates:
                    yield update
        while self._turn is None:
            async with aclosing(self._followed()) as updates:
                async for update in updates:
                    yield update

    async def _sent(self, card: AgentCard) -> AsyncGenerator[Update, None]:
        """Sends the message, and tells what comes of it while the answer lasts."""
        method = Method.STREAM if self._streams else Method.SEND
        params = {"message": self._body(card), "configuration": {"blocking": False}}
        attempt = 1
        while True:
            try:
                async with aclosing(self._heard_of(method, params)) as updates:
                    async for update in updates:
                        yield update
                if self._heard.task_id is None and self._turn is None:
                    raise AgentUnreachableError(
                        f"agent {self._client.name!r} took the message and answered nothing", concerns=self._client.name
                    )
                return
            except AgentUnreachableError as error:
                if self._heard.task_id is not None:
                    self._heard.gap = True
                    return
                await self._alive()
                attempt += 1
                again = not error.sent or remembers_messages(card)
                if not again or attempt > self._limits.agent_send_attempts:
                    found = await self._of_context(card) if error.sent else None
                    if found is None:
                        raise
                    for update in self._observed(found):
                        yield update
                    return
            await back_off(attempt, limits=self._limits)

    async def _followed(self) -> AsyncGenerator[Update, None]:
        """The task is known and its ending is not: it is read, and followed from there as well as the agent can."""
        for update in self._observed(await self._patiently_read()):
            yield update
        if self._turn is not None:
            return
        if not self._streams:
            for update in await self._changed():
                yield update
            return
        try:
            async with aclosing(self._heard_of(Method.RESUBSCRIBE, {"id": self._heard.task_id})) as updates:
                async for update in updates:
                    yield update
        except AgentUnreachableError:
            self._heard.gap = True
        except RpcError as error:
            # Some servers refuse a task that has ended meanwhile; the next look at it tells.
            self._streams = error.code not in _NO_RESUBSCRIBING and error.code != TASK_NOT_FOUND

    async def _heard_of(self, method: Method, params: dict[str, Json]) -> AsyncGenerator[Update, None]:
        """An answer's items. One that stays silent for too long is given up: the task itself is read then."""
        async with aclosing(self._client.stream(method, params)) as updates:
            while self._turn is None:
                scope = asyncio.timeout(self._limits.agent_silence_seconds if method is not Method.SEND else None)
                try:
                    async with scope:
                        update = await anext(updates)
                except StopAsyncIteration:
                    return
                except TimeoutError as error:
                    if not scope.expired():
                        raise
                    raise AgentUnreachableError(f"agent {self._client.name!r} is silent", concerns=self._client.name) from error
                for told in self._observed(update) if update is not None else ():
                    yield told

    def _observed(self, update: A2aUpdate) -> Iterator[Update]:
        """Takes an item in, and tells what of it is news."""
        known = self._heard.task_id
        told = self._heard.take(update)
        if self._heard.task_id is not None and known is None:
            yield Accepted(self._heard.task_id, self._heard.context_id)
        if told:
            yield Progress(told)
        match update:
            case Message():
                self._turn = turn_of(self._heard, End.COMPLETED)
            case Task(status=status) | StatusUpdate(status=status) if status.state.settled:
                self._turn = self._ended(status.state)
            case ArtifactUpdate() | Task() | StatusUpdate():
                pass

    def _ended(self, state: TaskState) -> Turn:
        end = End.INPUT_REQUIRED if not state.terminal else End(state.value)
        turn = turn_of(self._heard, end)
        if end is End.FAILED and turn.error_code == _OWN_TIMEOUT:
            return replace(turn, end=End.TIMED_OUT, partial=True)
        return turn

    # reading a task

    async def _patiently_read(self) -> Task:
        """The task, from an agent that may be away for a moment.

        Raises:
            SandboxUnavailableError: The agent's place has ended.
            AgentUnreachableError: It stays away, or forgot the task.
        """
        task_id = str(self._heard.task_id)
        last: AgentEnvError | None = None

        async def read() -> Task | None:
            nonlocal last
            try:
                return await self._client.task(task_id)
            except RpcError as error:
                if error.code == TASK_NOT_FOUND:
                    raise AgentUnreachableError(
                        f"agent {self._client.name!r} no longer knows task {task_id}: it was restarted, or forgot it",
                        concerns=self._client.name,
                    ) from error
                last = AgentFailedError(f"agent {self._client.name!r} can't tell of its task: {error.message}", reason=f"rpc_{error.code}")
            except AgentUnreachableError as error:
                last = error
            except AgentFailedError as error:
                if error.status < _SERVER_ERROR:
                    raise
                last = error
            await self._alive()
            return None

        try:
            seconds = self._limits.agent_unreachable_seconds
            return await poll(read, within_seconds=seconds, what=f"agent {self._client.name!r} to answer", limits=self._limits)
        except DeadlineError as error:
            why = last.message if last is not None else error.message
            raise AgentUnreachableError(why, concerns=self._client.name) from (last or error)

    async def _changed(self) -> list[Update]:
        """Waits for news of a task that can't be streamed."""
        seen = self._heard.mark

        async def look() -> list[Update] | None:
            told = list(self._observed(await self._patiently_read()))
            return told if told or self._turn is not None or self._heard.mark != seen else None

        limits = replace(self._limits, poll_max_seconds=self._limits.agent_poll_seconds)
        return await poll(look, within_seconds=self._seconds, what="the agent's answer", limits=limits)

    # finding what an earlier process sent

    async def _earlier(self, card: AgentCard) -> Task | None:
        """The task that this message started already; None when it is to be sent.

        Raises:
            PromptUncertainError: It may have been sent, and nobody can tell.
        """
        if self._message.known_task is not None:
            self._heard.task_id = self._message.known_task
            return await self._patiently_read()
        if not self._message.may_have_been_sent or remembers_messages(card):
            return None
        return await self._of_context(card, certain=True)

    async def _of_context(self, card: AgentCard, *, certain: bool = False) -> Task | None:
        """The task of our message in its conversation, where the agent's trajectory tells of conversations.

        Raises:
            PromptUncertainError: (With `certain`) it can't be told whether there is one.
        """
        context_id, entry = self._message.context_id, method_of(card, TRAJECTORY, "get")
        with suppress(RpcError, AgentUnreachableError):
            if context_id is not None and entry and card_request_accepts(entry.get("request") or {}, {"context_id", "after", "limit"}):
                try:
                    page = await self._client.invoke(TRAJECTORY, "get", {"context_id": context_id, "after": 0, "limit": 1})
                except AgentFailedError as error:
                    if error.status == _NOT_THERE:
                        return None
                    raise
                task_id = page.get("task_id") if isinstance(page, Mapping) else None
                if isinstance(task_id, str):
                    task = await self._client.task(task_id)
                    if any(each.message_id == self._message.message_id for each in task.history or ()):
                        return task
        if certain:
            raise PromptUncertainError(
                f"an earlier process may have sent this prompt to agent {self._client.name!r}, and the agent can't say whether it did",
                concerns=self._client.name,
                hint="deploy the agent again (retry with reset_places), or resume with --decide STEP=repeat",
            )
        return None

    # ending it ourselves

    async def _timed_out(self) -> Turn:
        """Asks the agent to stop. What it still says then is kept as what had come, whatever it calls it."""
        with suppress(AgentEnvError, RpcError):
            async with deadline(self._limits.agent_cancel_seconds, "cancelling the agent's task"):
                if self._heard.task_id is not None:
                    self._heard.take(await self._client.cancel(self._heard.task_id))
        turn = turn_of(self._heard, End.TIMED_OUT)
        message = f"the turn took longer than {self._message.timeout_seconds:g} s, and the agent was asked to stop"
        return replace(turn, partial=True, error_type="agent_error", error_code="timeout", error_message=message)

    async def _give_up(self) -> None:
        with suppress(AgentEnvError, RpcError, SandboxUnavailableError):
            await self._client.cancel(str(self._heard.task_id))

    def _body(self, card: AgentCard) -> dict[str, Json]:
        message = self._message
        metadata = {AGENT_CONFIG: self._config} if self._config and takes_message_config(card) else None
        try:
            made = Message.model_validate(
                {
                    "messageId": message.message_id,
                    "role": "user",
                    "parts": [dict(part) for part in message.parts],
                    "contextId": message.context_id,
                    "taskId": message.task_id,
                    "metadata": metadata,
                }
            )
        except ValidationError as error:
            raise AgentFailedError(f"the message can't be sent: {error}", reason="bad_message") from error
        return made.to_json()


def text_of(message: Message | None) -> str:
    """The text parts of a message."""
    return "\n".join(part.text for part in (message.parts if message else ()) if isinstance(part, TextPart))
