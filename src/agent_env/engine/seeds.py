"""Seeds: `<key>` in any text of a step becomes the seed's value. Keys, numbers and structure stay as they are."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from agent_env.documents.updates import Json


def substitute(steps: Sequence[Mapping[str, Json]], seed: Mapping[str, Json]) -> tuple[Mapping[str, Json], ...]:
    """The steps with every `<key>` replaced by `str(value)`, in one pass: a value that contains `<other>` is left as it is."""
    if not seed:
        return tuple(steps)
    values = {f"<{key}>": str(value) for key, value in seed.items()}
    pattern = re.compile("|".join(re.escape(key) for key in sorted(values, key=len, reverse=True)))

    def replaced(value: Json) -> Json:
        match value:
            case str():
                return pattern.sub(lambda found: values[found.group()], value)
            case Mapping():
                return {key: replaced(below) for key, below in value.items()}
            case list() | tuple():
                return [replaced(below) for below in value]
        return value

    return tuple(replaced(step) for step in steps)
