"""Fields of steps whose default is a limit of this installation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agent_env.defaults import Limits


@dataclass(frozen=True, slots=True)
class LimitDefault:
    """Marks a field whose default is a configured limit: `Step.under` fills it in.

    Args:
        name: The limit's, of `Limits`.
        unit: What the field counts in, where that is more than what the limit does; a part of one counts whole.
    """

    name: str
    unit: int = 1

    def of(self, limits: Limits) -> float:
        """The field's value under these limits."""
        value: float = getattr(limits, self.name)
        return value if self.unit == 1 else math.ceil(value / self.unit)
