"""Names of environment variables: one rule for documents and commands."""

from __future__ import annotations

VARIABLE_RULE = "a name has letters, digits and _, and does not begin with a digit"


def is_variable_name(name: str) -> bool:
    """Whether a shell could read a variable of that name."""
    return name.isidentifier() and name.isascii()
