"""Which role may use which tool: the rules that steps set, and how they are looked up.

A value and pure functions, so that a server without a gateway and the gateway itself decide alike, and so that rules can be
journalled and replayed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, Self

from .errors import AgentEnvError
from .names import ANY

Action = Literal["enable", "disable"]
Rules = Mapping[str, Mapping[str, bool]]
"""By role, then by tool (either may be `*`): whether the tool is disabled."""


@dataclass(frozen=True, slots=True)
class ToolAccess:
    """The rules that hold now."""

    rules: Rules = field(default_factory=lambda: MappingProxyType({}))

    def allowed(self, role: str, tool: str, hidden: bool = False) -> bool:
        """Whether a role may list and call a tool.

        The role's own rules are asked first, then those of `*`; the first that names the tool decides, else its `*` entry.

        Args:
            role: The caller's role; `default` for a caller without one.
            tool: The tool's name.
            hidden: Whether the tool is hidden by default: then `*` entries say nothing about it, and without a rule that
                names it, it stays hidden.
        """
        for rules in (self.rules.get(role, {}), self.rules.get(ANY, {})):
            if tool in rules:
                return not rules[tool]
            if ANY in rules and not hidden:
                return not rules[ANY]
        return not hidden

    def apply(self, role: str, tool: str, disabled: bool) -> ToolAccess:
        """The rules after one more: for one role or all (`*`), for one tool or all (`*`)."""
        match role == ANY, tool == ANY:
            case True, True:
                return ToolAccess({ANY: {ANY: disabled}})
            case True, False:
                everyone = {name: {**rules, tool: disabled} for name, rules in self.rules.items()}
                return ToolAccess({**everyone, ANY: {**self.rules.get(ANY, {}), tool: disabled}})
            case False, True:
                return ToolAccess({**self.rules, role: {ANY: disabled}})
            case _:
                return ToolAccess({**self.rules, role: {**self.rules.get(role, {}), tool: disabled}})

    def change(self, action: Action, body: object) -> tuple[ToolAccess, dict[str, Any]]:
        """A request of the enable and disable routes: `{"role": ..., "tools": [...] | "*"}`.

        Returns:
            The rules after it, and the answer: `{"role", "disabled", "allowed"}` with that role's own rules.

        Raises:
            AgentEnvError: `invalid_params`, for a body that says nothing usable.
        """
        fields = body if isinstance(body, dict) else {}
        role, tools = fields.get("role"), fields.get("tools")
        if not isinstance(role, str) or not role:
            raise AgentEnvError("invalid_params", "missing or invalid 'role' field")
        names = [ANY] if tools == ANY else tools
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise AgentEnvError("invalid_params", "'tools' must be a list of strings or the string '*'")
        after = self
        for name in names:
            after = after.apply(role, name, action == "disable")
        return after, {"role": role, **after.of(role)}

    def of(self, role: str) -> dict[str, list[str]]:
        """A role's own rules: `{"disabled": [...], "allowed": [...]}`."""
        rules = self.rules.get(role, {})
        return {
            "disabled": sorted(tool for tool, off in rules.items() if off),
            "allowed": sorted(tool for tool, off in rules.items() if not off),
        }

    def roles(self) -> dict[str, dict[str, list[str]]]:
        """Every role's own rules, as `/state` shows them."""
        return {role: self.of(role) for role in self.rules}

    def to_json(self) -> dict[str, dict[str, bool]]:
        """The rules as a JSON object, for a journal."""
        return {role: dict(rules) for role, rules in self.rules.items()}

    @classmethod
    def from_json(cls, value: Mapping[str, Mapping[str, bool]]) -> Self:
        """The rules that `to_json` wrote."""
        return cls({role: dict(rules) for role, rules in value.items()})


def denial(tool: str, role: str) -> AgentEnvError:
    """The refusal of a call that the rules forbid; `role` is `default` for a caller without one."""
    return AgentEnvError("permission_denied", f"Tool '{tool}' is disabled for role '{role}'", status=403)
