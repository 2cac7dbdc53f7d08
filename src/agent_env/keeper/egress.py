"""The way out of one place: a port on its loopback that speaks HTTP proxying (CONNECT and plain) and SOCKS5, held to a policy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from agent_env.defaults import Limits
from agent_env.errors import DeadlineError, InfrastructureError
from agent_env.keeper import http, socks
from agent_env.keeper.outside import Outside, Reached, Refusal, Unreached
from agent_env.keeper.policy import Policy
from agent_env.keeper.splice import Inlet, Pipe
from agent_env.waiting import deadline


@dataclass(frozen=True)
class Gate:
    """What stands between one place and the outside."""

    policy: Policy
    outside: Outside
    limits: Limits
    tell: Callable[[Refusal], None]
    """Called for everything that the policy forbade."""

    async def reach(self, host: str, port: int) -> Reached | Refusal | Unreached:
        """Connects, if the policy allows it."""
        found = await self.outside.reach(self.policy, host, port)
        if isinstance(found, Refusal):
            self.tell(found)
        return found


async def serve(pipe: Pipe, gate: Gate) -> None:
    """Serves one client to its end. What goes wrong with it ends it, and nothing else."""
    inlet = Inlet(pipe)
    try:
        async with deadline(gate.limits.keeper_head_seconds, "a client's first byte"):
            first = await inlet.exactly(1)
        inlet.give_back(first)
        if first[0] in socks.VERSIONS:
            await socks.serve(inlet, pipe, gate)
        else:
            await http.serve(inlet, pipe, gate)
        await _part(inlet, pipe, gate.limits)
    except (EOFError, OSError, InfrastructureError):
        return  # the client went, or is too slow to be waited for


async def _part(inlet: Inlet, pipe: Pipe, limits: Limits) -> None:
    """Ends our side first and lets the client end its own, so that the last words are not lost with the connection."""
    pipe.send_eof()
    try:
        async with deadline(limits.answer_margin_seconds, "a client's parting"):
            while await inlet.some():
                continue
    except DeadlineError:
        return
