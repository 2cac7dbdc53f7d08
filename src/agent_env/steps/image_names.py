"""What steps say about images by name: what can never be one is told before anything starts."""

from __future__ import annotations

import re
from collections.abc import Iterator

from agent_env.errors import Problem

_PLACEHOLDER = re.compile(r"<[^<>\n]+>")
_HINT = "write [host[:port]/]path[:tag][@sha256:…]"


def is_open(text: str) -> bool:
    """A seed is still to fill a part of it, so nothing can be said of it yet."""
    return _PLACEHOLDER.search(text) is not None


def image_problems(text: str | None, path: str, *, only_names: bool = False) -> Iterator[Problem]:
    """What is wrong with the name of an image.

    Args:
        text: As it is written; None is none.
        path: Where it stands in its step.
        only_names: A folder or an archive (`oci:`, `docker-archive:`) will not do.
    """
    if text is None or is_open(text):
        return
    from agent_env.images.oci.location import location_problem
    from agent_env.images.reference import reference_problem, shown_name

    if only_names:
        wrong = reference_problem(text)
        said = f"{shown_name(text)} is no image name: it {wrong}" if wrong else None
    else:
        said = location_problem(text)
    if said:
        yield Problem(said, path=path, hint=_HINT)
