"""A chain of providers: the first one that can makes the sandbox, and whoever could not is remembered with its reason."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from agent_env.defaults import Limits
from agent_env.documents.outcomes import OUTCOMES, Kind, kind_of
from agent_env.errors import AgentEnvError, DeadlineError, InfrastructureError, UnsupportedError, UserError
from agent_env.waiting import back_off

T = TypeVar("T")

_OURS = frozenset({Kind.SUPERSEDED, Kind.STORAGE, Kind.INTERNAL})
"""Endings that no other provider would change."""


def links(chain: str) -> list[str]:
    """The names of a chain, `a,b,c`, in the order in which they are tried; a name that comes twice is tried once."""
    return list(dict.fromkeys(name.strip() for name in chain.split(",") if name.strip()))


async def first_that_can(chain: Sequence[str], make: Callable[[str, Sequence[str]], Awaitable[T]], *, what: str, limits: Limits) -> T:
    """Asks each provider of a chain in turn.

    One that can't is passed over at once. One that fails is asked again, `limits.deploy_attempts` times in all, where the same may end
    differently; a start that ran out of time is not, because the next provider's time is better spent.

    Args:
        chain: Names of providers.
        make: Makes it with a provider; told the name and why the earlier ones did not. Holds its own deadline.
        what: What is made, for messages.
        limits: Attempts and pauses.

    Raises:
        UserError: A provider's name or options are wrong: the user's to mend, also where another could serve.
        UnsupportedError: None can; the message has the reason of each.
        InfrastructureError: None did, and at least one failed to; the message has the reason of each.
    """
    reasons: list[str] = []
    errors: list[AgentEnvError] = []
    for name in chain:
        try:
            return await _asked(name, make, reasons, limits)
        except UnsupportedError as error:
            errors.append(error)
        except (UserError, InfrastructureError) as error:
            if isinstance(error, UserError) or kind_of(error) in _OURS:
                raise
            errors.append(error)
        reasons.append(f"{name}: {errors[-1]}")
    if len(errors) == 1:
        raise errors[0]
    told = "; ".join(reasons) or "no provider is named"
    kind = UnsupportedError if all(isinstance(error, UnsupportedError) for error in errors) else InfrastructureError
    raise kind(f"no provider of {', '.join(chain)} made {what}: {told}") from (errors[-1] if errors else None)


async def _asked(name: str, make: Callable[[str, Sequence[str]], Awaitable[T]], reasons: Sequence[str], limits: Limits) -> T:
    """One provider, as often as it may be asked."""
    attempt = 1
    while True:
        try:
            return await make(name, tuple(reasons))
        except AgentEnvError as error:
            again = isinstance(error, InfrastructureError) and not isinstance(error, DeadlineError) and OUTCOMES[kind_of(error)].retry
            if not again or attempt >= limits.deploy_attempts:
                raise
        except Exception as error:  # a provider may be anybody's code, and the chain goes on
            raise InfrastructureError(
                f"the provider {name!r} broke: {type(error).__name__}: {error}",
                concerns=name,
                hint=f"agent-env provider check {name}",
            ) from error
        attempt += 1
        await back_off(attempt, limits=limits)
