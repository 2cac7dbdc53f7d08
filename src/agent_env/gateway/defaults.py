"""Every wait and limit of a gateway's process, named once.

Seconds are floats, sizes are bytes. Numbers marked (reference) are the published system's, kept so that existing tasks behave the same.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from agent_env.defaults import MIB


@dataclass(frozen=True, slots=True, eq=False)
class GatewayLimits:
    """The limits of one gateway process; its configuration's `limits` overrides them by name."""

    call_seconds: float = 600.0
    """One tool call (reference)."""
    initialize_seconds: float = 5.0
    """Opening a session with a server, each of its requests (reference)."""
    list_seconds: float = 30.0
    """One page of a server's list (reference)."""
    discovery_seconds: float = 60.0
    """How long the first listing waits for servers that have not said yet whether they are there (reference)."""
    introduce_seconds: float = 2.0
    """How long the answer to `initialize` waits to know what servers offer (reference: clients give it 5 s)."""
    card_seconds: float = 5.0
    """One server's card (reference)."""
    card_fresh_seconds: float = 5.0
    """How long a server's card is served without asking again."""
    connect_seconds: float = 10.0
    notify_seconds: float = 10.0
    """Telling a server something that it does not answer."""
    reopen_first_seconds: float = 0.1
    reopen_max_seconds: float = 5.0
    """A server that can't be reached is tried again after the first, then twice as long, at most the second."""
    resume_attempts: int = 3
    """How often a server's stream that ended before its answer is taken up again, where the server numbers its events."""
    resume_seconds: float = 1.0
    """Between them, unless the server says how long."""
    keep_alive_seconds: float = 15.0
    """Between signs of life on a stream that has nothing to say."""
    idle_connection_seconds: float = 4.0
    """How long an unused connection to a server is kept: servers close theirs after 5 s (uvicorn)."""
    connections: int = 128
    """To one server at once; more calls wait for one."""
    calls: int = 1024
    """In progress at once; more are refused."""
    request_bytes: int = 32 * MIB
    """What an agent's message may hold."""
    answer_bytes: int = 64 * MIB
    """What a server's message may hold."""
    tools_page: int = 500
    list_pages: int = 1000
    """Pages of a server's list that are read, at most."""
    proxy_seconds: float = 3600.0
    """One request to `/svc` or `/website` (reference)."""
    data_seconds: float = 3600.0
    """One operation of the data plane through the gateway (reference)."""
    changelog_seconds: float = 5.0
    changes_page: int = 1000
    changes_page_max: int = 10_000
    trajectory_bytes: int = 256 * MIB
    """On disk; the oldest half goes when it is full."""
    trajectory_event_bytes: int = 1 * MIB
    """Of one event's longest field: the rest is cut, and said to be."""
    trajectory_queue_bytes: int = 64 * MIB
    """Events that are not written yet; more are dropped, and counted."""
    windows: int = 100_000
    """Calls that changes of the database are attributed to, the latest ones."""
    journal_bytes: int = 8 * MIB
    """The journal is written anew, without what no longer holds, when it has grown by so much."""
    ended_sessions: int = 10_000
    """Session ids that were ended and are remembered as such."""
    followed_resources: int = 1000
    """Resources that one session can be told the changes of."""
    questions: int = 100
    """Of servers to one agent's client, that wait for its answer."""
    server_questions: int = 1000
    """Of one server, to anybody, that are under way at once; further ones are not answered."""
    question_seconds: float = 600.0
    """For the answer to one: a person may have to give it."""
    drain_seconds: float = 30.0
    """What calls in progress may take when the gateway is told to stop."""
    stop_seconds: float = 5.0
    """What connections may take to end after that."""
    client_idle_seconds: float = 75.0
    """How long a client's unused connection is kept."""
    backlog: int = 2048
    """Connections that wait while the server process is started again."""
    restart_first_seconds: float = 0.05
    restart_max_seconds: float = 5.0
    """Before a server process that ended is started again."""
    triggers: int = 1000
    trigger_queue: int = 1000
    """Calls that wait for one trigger's fire to end."""
    trigger_read_seconds: float = 60.0
    """One tool call of a trigger's check."""
    trigger_tick_seconds: float = 1.0
    """Between looks at the virtual time (reference)."""
    trigger_events_first: int = 1000
    trigger_events_last: int = 9000
    """Events that are kept of the log (reference)."""
    trigger_marks: int = 1000
    """Missed moments of one schedule that are caught up with at once (reference)."""
    executor_seconds: float = 120.0
    barrier_seconds: float = 30.0
    """How long a provoking call's answer waits for the fire (reference)."""
    barrier_bytes: int = 8 * MIB
    """What of a website's answer is read ahead while a fire is waited for (reference)."""
    regex_seconds: float = 0.25
    """One search for an author's pattern in one text."""
    regex_text_bytes: int = 1 * MIB
    """Of a text that is searched; the rest is not looked at."""

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The names that a configuration may override."""
        return tuple(field.name for field in fields(cls))


DEFAULT_GATEWAY_LIMITS = GatewayLimits()
