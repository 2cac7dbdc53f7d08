"""The broker itself: who asks, may they, where does it go, what came back. One object for all runs of an installation.

It is given a request and gives an answer; sockets are somebody else's. A real key is in the request that leaves it and nowhere else: what
comes back is searched for it, in every spelling, before it is passed on or written down.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from agent_env.broker import recordings
from agent_env.broker.accounts import Accounts, Grant, Settlement
from agent_env.broker.admission import BYTES_A_TOKEN, Admitted, Refused, Wanted
from agent_env.broker.answers import STATUS, Answer, RefusedError, Request, refusal
from agent_env.broker.bodies import body_of, model_of
from agent_env.broker.contract import Refusal, split_token
from agent_env.broker.dialects import SPELLINGS, Route, UsageReader, route_of
from agent_env.broker.endpoints import Endpoint, Endpoints, token_in
from agent_env.broker.recordings import Recorded, Recordings
from agent_env.broker.streams import KeptAnswer, without_usage
from agent_env.broker.transcript import Transcript
from agent_env.broker.upstream import Begun, Upstream
from agent_env.defaults import Limits
from agent_env.errors import AgentEnvError, DeadlineError, ModelUnavailableError
from agent_env.redaction import Redactor
from agent_env.waiting import deadline, shielded

if TYPE_CHECKING:
    from agent_env.stores.installation import InstallationKey

Json = Any
_REPLAY: Final = "replay"
_GONE: Final = "the caller went away before the answer was over"
_UNTOLD: Final = Refused(
    Refusal.KEY, "the model broker was just started, and nobody has told it the key yet: whoever goes on with the run does"
)


@dataclass
class _Call:
    """One request on its way."""

    grant: Grant
    route: Route
    path: str
    query: str
    request: Request
    body: dict[str, Json]
    wanted: Wanted
    asked: recordings.Asked | None
    endpoints: Endpoints
    redact: Callable[[Json], Json]
    """Takes keys and the token out of what is written down."""
    begun: float
    admitted: Admitted | None = None
    first_byte: float | None = None
    attempts: int = 0
    begun_as: Begun | None = None
    asks_secretly: bool = False
    """A stream of chat completions tells its tokens only to who asks for it: we do, and keep that from the agent."""
    kept: KeptAnswer = field(default_factory=lambda: KeptAnswer(0))

    @property
    def streamed(self) -> bool:
        """The request wants a stream."""
        return self.route.streams or bool(self.body.get("stream"))


class Broker:
    """Answers calls for every run of an installation.

    Args:
        accounts: What is used, in the run database.
        key: Of the installation: tokens are derived from it.
        endpoints: Gives the endpoints that a grant names, once they are known; None when nobody tells them.
        redactor: Knows every key that was told.
        limits: `model_*`.
    """

    def __init__(
        self,
        accounts: Accounts,
        key: InstallationKey,
        endpoints: Callable[[str], Awaitable[Endpoints | None]],
        *,
        redactor: Redactor,
        limits: Limits,
    ) -> None:
        self._accounts = accounts
        self._key = key
        self._endpoints = endpoints
        self._redactor = redactor
        self._limits = limits
        self._upstream = Upstream(limits)
        self._freed: dict[str, asyncio.Event] = {}

    async def aclose(self) -> None:
        """Ends its connections."""
        await self._upstream.aclose()

    @asynccontextmanager
    async def answering(self, request: Request) -> AsyncIterator[Answer]:
        """Answers one request. Whatever ends the block, the call is settled with what went over until then."""
        path, query = urlsplit(request.target).path, urlsplit(request.target).query
        route = route_of(request.method, path)
        try:
            if route is None:
                raise RefusedError(Refused(Refusal.UNKNOWN, f"the model broker carries no {request.method} {path}"))
            call = await self._call(request, route, path, query)
        except RefusedError as error:
            yield refusal(route, error.refused)
            return
        async with contextlib.AsyncExitStack() as stack:
            try:
                answer = await stack.enter_async_context(self._answered(call))
            except RefusedError as error:
                answer = refusal(route, error.refused)
            yield answer

    # before anything is asked

    async def _call(self, request: Request, route: Route, path: str, query: str) -> _Call:
        token = token_in(request.headers, query)
        grant = await self._granted(token)
        body = body_of(request, route)
        model = model_of(route, body)
        asked = recordings.asked(route, model, body) if grant.account.record or grant.account.replay else None
        endpoints = await self._endpoints(grant.endpoints)
        endpoint = endpoints.choose(route.dialect, model) if endpoints is not None else None
        wanted = Wanted(
            dialect=route.dialect,
            model=model,
            endpoint=_REPLAY if grant.account.replay else endpoint.name if endpoint else None,
            request_bytes=len(request.body),
            ceiling=SPELLINGS[route.dialect].ceiling(body),
            answers=SPELLINGS[route.dialect].answers(body),
            price=endpoints.price(model) if endpoints is not None else None,
            request_key=asked.key if asked else None,
        )
        refused = None if grant.account.replay and endpoints is not None else _unable(endpoints, endpoint, wanted)
        if refused is not None or endpoints is None:
            refused = refused or _UNTOLD
            if route.asks:
                await self._accounts.refuse(grant, wanted, refused)
            raise RefusedError(refused)
        own = Redactor((token or "",))

        def redact(value: Json) -> Json:
            return own.redact(self._redactor.redact(value))

        now, kept = asyncio.get_running_loop().time(), KeptAnswer(self._limits.model_answer_bytes)
        call = _Call(grant, route, path, query, request, body, wanted, asked, endpoints, redact, now, kept=kept)
        options = body.get("stream_options")
        told = isinstance(options, dict) and options.get("include_usage")
        call.asks_secretly = route.resource == "chat/completions" and call.streamed and not told
        return call

    async def _granted(self, token: str | None) -> Grant:
        named = split_token(token or "")
        grant = await asyncio.to_thread(self._accounts.find, named[0]) if named else None
        if named is None or grant is None or not hmac.compare_digest(named[1], proof_of(self._key, grant.run_id, grant.grant_id)):
            raise RefusedError(
                Refused(Refusal.TOKEN, "that is no token of this model broker" if token else "there is no token in the request")
            )
        if grant.over:
            raise RefusedError(Refused(Refusal.TOKEN, "the run that this token belongs to has ended"))
        return grant

    # answering

    @asynccontextmanager
    async def _answered(self, call: _Call) -> AsyncIterator[Answer]:
        if call.route.asks:
            call.admitted = await self._admitted(call)
        settlement = Settlement("failed", message=_GONE)
        try:
            async with self._begun(call) as begun:
                call.attempts = begun.attempts
                call.begun_as = begun
                answer = Answer(
                    begun.status, [(name, self._redactor.redact(value)) for name, value in begun.headers], self._pieces(call, begun)
                )
                yield answer
                settlement = self._settled(call, begun)
        except RefusedError as error:
            settlement = Settlement("failed", STATUS[error.refused.refusal], refusal=error.refused.refusal, message=error.refused.message)
            raise
        except ModelUnavailableError as error:
            settlement = Settlement("failed", refusal=Refusal.UNAVAILABLE, message=error.message)
            raise
        finally:
            if call.begun_as is not None and settlement.message == _GONE and call.kept.ended:
                call.kept.whole = True
                settlement = self._settled(call, call.begun_as)
            await shielded(self._settle(call, settlement), seconds=self._limits.cleanup_seconds, what="settling a call of a model")

    async def _admitted(self, call: _Call) -> Admitted:
        account = call.grant.account.account
        freed = self._freed.setdefault(account, asyncio.Event())
        try:
            async with deadline(self._limits.model_turn_seconds, "the calls before this one"):
                while True:
                    freed.clear()
                    found = await self._accounts.admit(call.grant, call.wanted)
                    if isinstance(found, Admitted):
                        return found
                    if isinstance(found, Refused):
                        raise RefusedError(found)
                    with contextlib.suppress(TimeoutError):  # others may be settled by another process, which wakes nobody here
                        async with asyncio.timeout(self._limits.poll_max_seconds):
                            await freed.wait()
        except DeadlineError as error:
            refused = Refused(Refusal.UNAVAILABLE, error.message)
            await self._accounts.refuse(call.grant, call.wanted, refused)
            raise RefusedError(refused) from None

    @asynccontextmanager
    async def _begun(self, call: _Call) -> AsyncIterator[Begun]:
        if call.grant.account.replay:
            yield await self._replayed(call, Recordings(Path(call.grant.account.replay)))
            return
        endpoint = call.endpoints.choose(call.route.dialect, call.wanted.model)
        assert endpoint is not None  # that was looked at before the call was let through
        headers, body = endpoint.request_headers(call.request.headers), self._body(call)
        asking = self._upstream.asking(call.request.method, endpoint.address(call.route, call.path, call.query), headers, body)
        async with contextlib.AsyncExitStack() as stack:
            try:
                begun = await stack.enter_async_context(asking)
            except ModelUnavailableError as error:
                raise RefusedError(Refused(Refusal.UNAVAILABLE, self._redactor.redact(error.message))) from error
            if 300 <= begun.status < 400:
                raise RefusedError(
                    Refused(Refusal.UNAVAILABLE, f"endpoint {endpoint.name!r} redirects, and a key goes only where it was configured for")
                )
            if begun.status == 400 and call.admitted and call.admitted.ceiling is not None:
                # What is left is too little for an answer of this model, which says so in its own way.
                raise RefusedError(Refused(Refusal.BUDGET, "the run's budget for models is used up: too little is left for an answer"))
            yield begun

    async def _replayed(self, call: _Call, kept: Recordings) -> Begun:
        assert call.asked is not None
        occurrence = call.admitted.occurrence if call.admitted else 0
        found = await asyncio.to_thread(kept.find, call.asked, occurrence)
        if found is None:
            nearest = await asyncio.to_thread(kept.closest, call.asked)
            why = f": {nearest}" if nearest else ", which holds no answers" if not kept.folder.is_dir() else ""
            raise RefusedError(Refused(Refusal.NOT_RECORDED, f"nothing like this request is in the recording {kept.folder}{why}"))

        async def pieces() -> AsyncIterator[bytes]:
            yield found.body

        return Begun(found.status, [("content-type", found.content_type)], pieces(), 1)

    def _body(self, call: _Call) -> bytes:
        """The request's own bytes, unless the budget bounds its answer, or a stream would not tell what it used."""
        changed = False
        if call.admitted and call.admitted.ceiling is not None:
            SPELLINGS[call.route.dialect].capped(call.body, call.admitted.ceiling)
            changed = True
        if call.asks_secretly:
            told = call.body.get("stream_options")
            call.body["stream_options"] = {**(told if isinstance(told, dict) else {}), "include_usage": True}
            changed = True
        return json.dumps(call.body).encode() if changed else call.request.body

    async def _pieces(self, call: _Call, begun: Begun) -> AsyncIterator[bytes]:
        """The body for the agent, looked through on its way."""
        hide = self._redactor.stream()
        events = "event-stream" in begun.content_type
        call.kept.content_type = begun.content_type
        call.kept.reader = UsageReader(call.route.dialect, streamed=events, most_bytes=self._limits.model_answer_bytes)
        pieces = call.kept.keeping(begun.pieces)
        async for piece in without_usage(pieces) if events and call.asks_secretly else pieces:
            if call.first_byte is None:
                call.first_byte = asyncio.get_running_loop().time()
            if shown := hide.feed(piece):
                yield shown
        if rest := hide.flush():
            yield rest
        call.kept.whole = True

    # afterwards

    def _settled(self, call: _Call, begun: Begun) -> Settlement:
        """How a call that was answered to its end, or left by the agent, came out."""
        problem: tuple[Refusal, str] | None = None
        if begun.status in {401, 403}:
            problem = Refusal.KEY, f"endpoint {call.wanted.endpoint!r} refuses the key (status {begun.status})"
        elif begun.status >= 500 or begun.status in {408, 429}:
            problem = Refusal.UNAVAILABLE, f"endpoint {call.wanted.endpoint!r} answered with status {begun.status}, {begun.attempts} times"
        state: Any = "done" if call.kept.whole and begun.status < 400 else "failed"
        message = problem[1] if problem else None if call.kept.whole else _GONE
        return Settlement(state, begun.status, refusal=problem[0] if problem else None, message=message)

    async def _settle(self, call: _Call, settlement: Settlement) -> None:
        now = asyncio.get_running_loop().time()
        told = call.kept.reader.end() if call.kept.reader is not None else None
        answered = call.kept.reader is not None and (settlement.status or 200) < 400
        input_tokens, output_tokens, cached, estimated = 0, 0, 0, False
        if told is not None:
            input_tokens, output_tokens, cached = told
        elif answered and call.kept.reader is not None:
            input_tokens, output_tokens, estimated = len(call.request.body) // BYTES_A_TOKEN, call.kept.reader.estimate(), True
        elif settlement.message == _GONE and call.admitted is not None:  # the model had it to read, and whoever runs it counts that
            input_tokens, estimated = len(call.request.body) // BYTES_A_TOKEN, True
        price = call.wanted.price
        counted = told is not None or estimated
        full = Settlement(
            settlement.state,
            settlement.status,
            max(call.attempts, 1),
            input_tokens,
            output_tokens,
            cached,
            price.cost(input_tokens, output_tokens, cached) if price is not None and counted else None,
            estimated,
            now - call.begun,
            call.first_byte - call.begun if call.first_byte is not None else None,
            settlement.refusal,
            call.redact(settlement.message) if settlement.message else None,
        )
        if call.admitted is not None:
            await self._accounts.settle(call.admitted.call_id, full)
            self._freed[call.grant.account.account].set()
        try:
            await asyncio.to_thread(self._write_down, call, full)
        except AgentEnvError as error:  # the call is over and counted; what is missing is told where people look
            logging.getLogger(__name__).error("run %s: %s", call.grant.run_id, error.message)

    def _write_down(self, call: _Call, ended: Settlement) -> None:
        account = call.grant.account
        whole = call.kept.whole and not call.kept.cut and ended.status is not None and ended.status < 500 and ended.refusal is None
        if account.record and call.asked is not None and whole:
            answer = Recorded(ended.status or 200, call.kept.content_type, bytes(call.kept.body), call.wanted.model)
            Recordings(Path(account.record)).write(call.asked, call.admitted.occurrence if call.admitted else 0, answer, call.redact)
        if account.transcript and call.route.asks:
            head = {
                "at": self._accounts.now,
                "call": call.admitted.call_id if call.admitted else None,
                "holder": call.grant.holder,
                "role": call.grant.role,
                "turn": call.grant.turn,
                "dialect": call.route.dialect.value,
                "endpoint": call.wanted.endpoint,
                "model": call.wanted.model,
                **{name: getattr(ended, name) for name in Settlement.__dataclass_fields__},
            }
            Transcript(Path(account.transcript), self._limits.model_transcript_bytes, call.redact).write(
                head, call.body, bytes(call.kept.body)
            )


def proof_of(key: InstallationKey, run_id: str, grant_id: str) -> str:
    """What shows that a token is ours."""
    return key.derive(run_id, f"models:{grant_id}")


def _unable(endpoints: Endpoints | None, endpoint: Endpoint | None, wanted: Wanted) -> Refused | None:
    """Why a call can't be sent to anybody."""
    if endpoints is None:
        return _UNTOLD
    if endpoint is None:
        return Refused(Refusal.UNCONFIGURED, f"no endpoint is configured for {wanted.dialect} and model {wanted.model!r}; see [model]")
    return Refused(Refusal.KEY, f"endpoint {endpoint.name!r} can't be asked: {endpoint.problem}") if endpoint.problem else None
