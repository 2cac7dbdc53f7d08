"""What configuration may say about a provider of confined sandboxes: its table `[sandbox.providers.<name>.config]`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from agent_env.errors import UserError

_ALLOW_PRIVATE = "allow_private"


@dataclass(frozen=True, slots=True)
class Options:
    """The options that every such provider has. Whoever has more, adds to `choices` and `texts`."""

    choices: ClassVar[Mapping[str, tuple[object, ...]]] = {"network": ("auto", "slirp4netns", "machine")}
    """Option → what it may be."""
    texts: ClassVar[Mapping[str, str]] = {}
    """Option that is any text → an example."""

    network: str = "auto"
    """`auto` uses slirp4netns where it works; `machine` shares this machine's network; `slirp4netns` refuses to."""
    allow_private: tuple[str, ...] = ()
    """Address ranges that are not public, and that an allow-list may open all the same: services of this machine or its network."""

    @classmethod
    def parse(cls, provider: str, options: Mapping[str, object]) -> Self:
        """Reads the table of that provider.

        Raises:
            UserError: An unknown option or value.
        """
        read: dict[str, Any] = {}
        for name, value in options.items():
            wrong = f"option {name!r} of the provider {provider!r} can't be {value!r}"
            if name == _ALLOW_PRIVATE:
                read[name] = _ranges(provider, value)
            elif name in cls.texts:
                if not isinstance(value, str) or not value:
                    raise UserError(wrong, hint=f"such as {cls.texts[name]!r}")
                read[name] = value
            elif name in cls.choices:
                if value not in cls.choices[name]:
                    raise UserError(wrong, hint=f"one of {', '.join(map(str, cls.choices[name]))}")
                read[name] = value
            else:
                known = ", ".join([*cls.choices, _ALLOW_PRIVATE, *cls.texts])
                raise UserError(f"the provider {provider!r} has no option {name!r}", hint=f"it has {known}")
        return cls(**read)


def _ranges(provider: str, value: object) -> tuple[str, ...]:
    from agent_env.keeper.policy import cidr_problems

    entries = tuple(map(str, value)) if isinstance(value, list | tuple) else ()
    problems = [*cidr_problems(entries, _ALLOW_PRIVATE)] if entries or not value else ["it is a list of address ranges"]
    if problems:
        message = f"option {_ALLOW_PRIVATE!r} of the provider {provider!r} can't be used: {problems[0]}"
        raise UserError(message, hint='such as ["10.1.0.0/16"]')
    return entries
