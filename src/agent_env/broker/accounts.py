"""What runs use of models, in the run database: who may ask, what may be used up, and a row for each call.

A call is let through and settled in one transaction each, so that limits hold exactly, whoever asks and from whichever process. Rows of a
process that died count as lost, with what is known of them.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Literal

from agent_env.broker.admission import BYTES_A_TOKEN, Admission, Admitted, Refused, Room, Wanted, judged
from agent_env.broker.contract import Budget, Refusal, Role, Usage
from agent_env.clock import timestamp
from agent_env.stores.leases import owner_of
from agent_env.stores.owners import Life, Owner
from agent_env.stores.packing import dump

if TYPE_CHECKING:
    from agent_env.stores.connection import Connection, Row
    from agent_env.stores.database import Database

_MOST_MESSAGE: Final = 2000


@dataclass(frozen=True, slots=True)
class Account:
    """What is used up together: by the agents and simulated users of a run, or by its judges."""

    account: str
    run_id: str
    budget: Budget = field(default_factory=Budget)
    keep: bool = False
    """The run's places outlive it, and may go on asking."""
    record: str | None = None
    """The folder that answers are recorded in."""
    replay: str | None = None
    """The folder that answers come from; no model is asked."""
    transcript: str | None = None
    """The file that calls are written down in."""

    def options(self) -> dict[str, Any]:
        """As it is stored."""
        return {"keep": self.keep, "record": self.record, "replay": self.replay, "transcript": self.transcript}


@dataclass(frozen=True, slots=True)
class Grant:
    """One holder's leave to ask."""

    grant_id: str
    holder: str
    role: Role
    account: Account
    endpoints: str = ""
    """What its endpoints are called; see `Endpoints.name_for`."""
    base_url: str | None = None
    """The address that was asked for in place of the configured ones."""
    turn: str | None = None
    over: bool = False
    """Its run has ended."""

    @property
    def run_id(self) -> str:
        """Whose it is."""
        return self.account.run_id


@dataclass(frozen=True, slots=True)
class Settlement:
    """How a call ended."""

    state: Literal["done", "failed"]
    status: int | None = None
    attempts: int = 1
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cost_usd: float | None = None
    estimated: bool = False
    duration_seconds: float = 0.0
    first_byte_seconds: float | None = None
    refusal: Refusal | None = None
    message: str | None = None


@dataclass(frozen=True)
class Accounts:
    """The rows of one database."""

    db: Database
    owner: Owner = field(default_factory=Owner.this_process)

    # who may ask

    async def open(self, account: Account, *, change: bool = True) -> None:
        """Opens an account.

        Args:
            account: What it may use.
            change: One that is open already may use that from now on.
        """
        values = {
            "account": account.account,
            "run": account.run_id,
            "budget": dump(account.budget.plain()),
            "options": dump(account.options()),
        }
        await self.db.awrite(lambda tx: tx.change(_OPEN if change else _OPEN_ONCE, values))

    async def grant(self, grant: Grant) -> None:
        """Gives leave, or changes which endpoints it is for."""
        values = {
            "grant": grant.grant_id,
            "run": grant.run_id,
            "account": grant.account.account,
            "holder": grant.holder,
            "role": grant.role,
            "facts": dump({"endpoints": grant.endpoints, "base_url": grant.base_url}),
            "now": self.now,
        }
        await self.db.awrite(lambda tx: tx.change(_GRANT, values))

    async def begin_turn(self, run_id: str, holder: str, turn: str) -> None:
        """The calls of that holder from now on belong to that turn."""
        sql = "UPDATE model_grants SET turn = :turn WHERE run_id = :run AND holder = :holder"
        await self.db.awrite(lambda tx: tx.change(sql, {"run": run_id, "holder": holder, "turn": turn}))

    def find(self, grant_id: str) -> Grant | None:
        """A grant as it stands; None when there is none. Its run may have ended."""
        rows = self.db.read(lambda tx: tx.execute(_FIND, {"grant": grant_id}))
        return _grant(rows[0]) if rows else None

    # calls

    async def admit(self, grant: Grant, wanted: Wanted) -> Admission:
        """Lets a call through if the budget has room for it. A refusal is a row too.

        Near the end of a budget of tokens or money a call that could cross it goes alone, with its answer's length bounded to what is left.
        """
        return await self.db.awrite(lambda tx: self._admit(tx, grant, wanted))

    async def refuse(self, grant: Grant, wanted: Wanted, refused: Refused) -> None:
        """Notes a call that was refused for another reason than the budget."""
        await self.db.awrite(lambda tx: self._row(tx, grant, wanted, state="refused", refused=refused))

    async def settle(self, call_id: str, settlement: Settlement) -> None:
        """Notes how a call ended. Once; a second time changes nothing."""
        values = {
            "call": call_id,
            "now": self.now,
            **{name: getattr(settlement, name) for name in Settlement.__dataclass_fields__},
            "estimated": int(settlement.estimated),
            "message": (settlement.message or "")[:_MOST_MESSAGE] or None,
        }
        await self.db.awrite(lambda tx: tx.change(_SETTLE, values))

    async def usage(self, run_id: str, *, holder: str | None = None, turn: str | None = None, role: Role | None = None) -> Usage:
        """What was used, of everything that fits."""
        given = {"holder": holder, "turn": turn, "role": role}
        params: dict[str, Any] = {"run": run_id, **{name: value for name, value in given.items() if value is not None}}
        where = " AND ".join(["run_id = :run", *(f"{name} = :{name}" for name in params if name != "run")])
        sums, last = self.db.read(
            lambda tx: (tx.execute(_USED.format(where=where), params)[0], tx.execute(_LAST.format(where=where), params))
        )
        final = last[0] if last else None
        return replace(
            _usage(sums),
            problem=Refusal(final.refusal) if final is not None and final.refusal else None,
            message=final.message if final is not None and final.refusal else None,
        )

    async def by_turn(self, run_id: str) -> list[tuple[str, Role, str | None, Usage]]:
        """Holder, role and turn, in the order in which they first asked, with what each used."""
        found = self.db.read(lambda tx: tx.execute(_TURNS, {"run": run_id}))
        return [(row.holder, row.role, row.turn, _usage(row)) for row in found]

    # within a transaction

    def _admit(self, tx: Connection, grant: Grant, wanted: Wanted) -> Admission:
        # Touching the account first takes its lock: whoever else wants to be let through waits here.
        account = grant.account
        tx.change("UPDATE model_accounts SET touched = touched + 1 WHERE account = :account", {"account": account.account})
        self._bury(tx, account.account)
        spent = tx.execute(_SPENT, {"account": account.account})[0]
        room = judged(account.budget, wanted, spent)
        if room == "wait":
            return "wait"
        if isinstance(room, Refused):
            self._row(tx, grant, wanted, state="refused", refused=room)
            return room
        same = {"run": grant.run_id, "key": wanted.request_key}
        before = tx.execute(_SAME, same)[0].calls if wanted.request_key else 0
        return Admitted(self._row(tx, grant, wanted, state="open", room=room), before, room.ceiling)

    def _bury(self, tx: Connection, account: str) -> None:
        """Ends the calls of processes that are gone. What they used is not known: what they sent is counted."""
        open_calls = tx.execute("SELECT call_id, owner FROM model_calls WHERE account = :account AND state = 'open'", {"account": account})
        mine = self._me
        for row in open_calls:
            owner = None if row.owner == mine else owner_of(row.owner)
            if owner is not None and owner.life() is Life.DEAD:
                tx.change(_LOST, {"call": row.call_id, "now": self.now, "bytes": BYTES_A_TOKEN})

    def _row(
        self, tx: Connection, grant: Grant, wanted: Wanted, *, state: str, room: Room | None = None, refused: Refused | None = None
    ) -> str:
        call_id, now = uuid.uuid4().hex, self.now
        tx.change(
            _CALL,
            {
                "call": call_id,
                "run": grant.run_id,
                "account": grant.account.account,
                "grant": grant.grant_id,
                "holder": grant.holder,
                "role": grant.role,
                "turn": grant.turn,
                "state": state,
                "dialect": wanted.dialect.value,
                "model": wanted.model,
                "endpoint": wanted.endpoint,
                "key": wanted.request_key,
                "owner": self._me,
                "now": now,
                "finished": now if refused else None,
                "bytes": wanted.request_bytes,
                "tokens": room.tokens if room else 0,
                "usd": room.usd if room else 0.0,
                "refusal": refused.refusal.value if refused else None,
                "message": refused.message[:_MOST_MESSAGE] if refused else None,
            },
        )
        return call_id

    @cached_property
    def _me(self) -> str:
        return dump(self.owner.to_json())

    @property
    def now(self) -> str:
        """As rows say it."""
        return timestamp(self.db.clock.now())


def _usage(sums: Row) -> Usage:
    return Usage(
        requests=int(sums.requests or 0),
        input_tokens=int(sums.input or 0),
        output_tokens=int(sums.output or 0),
        cached_tokens=int(sums.cached or 0),
        cost_usd=None if sums.unpriced or not sums.requests else float(sums.cost or 0.0),
        estimated=int(sums.estimated or 0),
        refused=int(sums.refused or 0),
    )


def _grant(row: Row) -> Grant:
    options = json.loads(row.options)
    account = Account(row.account, row.run_id, Budget.of(json.loads(row.budget)), **options)
    over = (row.finished_at is not None and not account.keep) or row.known_run is None
    facts = json.loads(row.facts)
    return Grant(row.grant_id, row.holder, row.role, account, facts["endpoints"], facts["base_url"], row.turn, over)


_OPEN_ONCE: Final = (
    "INSERT INTO model_accounts (account, run_id, budget, options) VALUES (:account, :run, :budget, :options)"
    " ON CONFLICT (account) DO NOTHING"
)
_OPEN: Final = _OPEN_ONCE.replace("NOTHING", "UPDATE SET budget = excluded.budget, options = excluded.options")
_GRANT: Final = (
    "INSERT INTO model_grants (grant_id, run_id, account, holder, role, facts, created_at)"
    " VALUES (:grant, :run, :account, :holder, :role, :facts, :now)"
    " ON CONFLICT (grant_id) DO UPDATE SET facts = excluded.facts"
)
_FIND: Final = (
    "SELECT g.grant_id, g.run_id, g.holder, g.role, g.facts, g.turn, a.account, a.budget, a.options, r.finished_at, r.run_id AS known_run"
    " FROM model_grants g JOIN model_accounts a ON a.account = g.account LEFT JOIN runs r ON r.run_id = g.run_id WHERE g.grant_id = :grant"
)
_SPENT: Final = (
    "SELECT COUNT(*) AS requests, SUM(input_tokens + output_tokens) AS tokens, SUM(cost_usd) AS usd,"
    " SUM(CASE WHEN state = 'open' THEN 1 ELSE 0 END) AS running,"
    " SUM(CASE WHEN state = 'open' THEN reserved_tokens ELSE 0 END) AS held_tokens,"
    " SUM(CASE WHEN state = 'open' THEN reserved_usd ELSE 0 END) AS held_usd,"
    " SUM(CASE WHEN state = 'done' AND estimated = 0 THEN input_tokens ELSE 0 END) AS known_input,"
    " SUM(CASE WHEN state = 'done' AND estimated = 0 AND input_tokens > 0 THEN request_bytes ELSE 0 END) AS known_bytes"
    " FROM model_calls WHERE account = :account AND state <> 'refused'"
)
_SAME: Final = "SELECT COUNT(*) AS calls FROM model_calls WHERE run_id = :run AND request_key = :key AND state IN ('open', 'done')"
_CALL: Final = (
    "INSERT INTO model_calls (call_id, run_id, account, grant_id, holder, role, turn, state, dialect, model, endpoint, request_key, owner,"
    " started_at, finished_at, request_bytes, reserved_tokens, reserved_usd, refusal, message)"
    " VALUES (:call, :run, :account, :grant, :holder, :role, :turn, :state, :dialect, :model, :endpoint, :key, :owner,"
    " :now, :finished, :bytes, :tokens, :usd, :refusal, :message)"
)
_SETTLE: Final = (
    "UPDATE model_calls SET state = :state, finished_at = :now, status = :status, attempts = :attempts, input_tokens = :input_tokens,"
    " output_tokens = :output_tokens, cached_tokens = :cached_tokens, cost_usd = :cost_usd, estimated = :estimated,"
    " duration_seconds = :duration_seconds, first_byte_seconds = :first_byte_seconds, refusal = :refusal, message = :message"
    " WHERE call_id = :call AND state IN ('open', 'lost')"
)
_LOST: Final = (
    "UPDATE model_calls SET state = 'lost', finished_at = :now, estimated = 1, input_tokens = request_bytes / :bytes"
    " WHERE call_id = :call AND state = 'open'"
)
_SUMS: Final = (
    " SUM(CASE WHEN state <> 'refused' THEN 1 ELSE 0 END) AS requests, SUM(input_tokens) AS input, SUM(output_tokens) AS output,"
    " SUM(cached_tokens) AS cached, SUM(cost_usd) AS cost, SUM(estimated) AS estimated,"
    " SUM(CASE WHEN state IN ('done', 'lost') AND cost_usd IS NULL THEN 1 ELSE 0 END) AS unpriced,"
    " SUM(CASE WHEN state = 'refused' THEN 1 ELSE 0 END) AS refused FROM model_calls"
)
_USED: Final = f"SELECT{_SUMS} WHERE {{where}}"
_TURNS: Final = f"SELECT holder, role, turn,{_SUMS} WHERE run_id = :run GROUP BY holder, role, turn ORDER BY MIN(started_at), holder, turn"
_LAST: Final = (
    "SELECT refusal, message FROM model_calls WHERE {where} AND finished_at IS NOT NULL ORDER BY finished_at DESC, call_id DESC LIMIT 1"
)
