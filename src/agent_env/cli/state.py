"""What one invocation knows about itself, shared between the frame and the commands."""

from __future__ import annotations

from dataclasses import dataclass, field

import click

from agent_env.cli.redacting import Redacting


@dataclass(slots=True)
class State:
    """Set while the arguments are parsed; read by the error boundary, also when parsing failed half-way."""

    debug: bool = False
    """Tracebacks and debug logs were asked for."""
    json: bool = False
    """One JSON object on standard output was asked for, also for an error."""
    redact: Redacting = field(default_factory=Redacting)
    """Takes known secrets out of text."""
    warned: set[str] = field(default_factory=set)
    """Warnings of the configuration that were shown: it is read more than once, and says so once."""


def state_of(ctx: click.Context) -> State:
    """The state of this invocation."""
    state = ctx.find_object(State)
    if state is None:
        state = ctx.find_root().obj = State()
    return state
