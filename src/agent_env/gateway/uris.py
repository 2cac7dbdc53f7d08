"""URIs of resources: which template one fits, and which spellings mean the same one to a lenient reader."""

from __future__ import annotations

import posixpath
import re
import unicodedata
from urllib.parse import unquote

_EXPRESSION = re.compile(r"\{[^{}]*\}")
_IGNORED = re.compile(r"[\x00-\x20\x7f]+")
_PORTS = re.compile(r"^(https?:/[^/]*?):(?:80|443)(?=/|$)")
_DECODED = 4


def plain(uri: str) -> str:
    """A URI as the most lenient server would read it: two that are the same so may mean the same resource."""
    text = uri
    for _ in range(_DECODED):
        once = unquote(text)
        if once == text:
            break
        text = once
    text = _IGNORED.sub("", unicodedata.normalize("NFKC", text)).replace("\\", "/").casefold()
    text = text.partition("#")[0].rstrip("?")
    scheme, colon, rest = text.partition(":")
    path = re.sub(r"/+", "/", rest)
    rooted = path.startswith("/")
    tidy = posixpath.normpath(path) if path else ""
    return _PORTS.sub(r"\1", f"{scheme}{colon}{tidy if rooted else tidy.lstrip('/')}")


def fits(template: str, uri: str) -> int | None:
    """How many characters of a URI a template spells out; None where it does not fit. What stands for an expression may be anything: the
    server has the last word.
    """
    pieces = _EXPRESSION.split(template)
    if len(pieces) == 1:
        return len(uri) if template == uri else None
    first, *middle, last = pieces
    if not uri.startswith(first) or len(uri) < len(first) + len(last) or not uri.endswith(last):
        return None
    position, end = len(first), len(uri) - len(last)
    for piece in middle:
        found = uri.find(piece, position, end)
        if found < 0:
            return None
        position = found + len(piece)
    return sum(map(len, pieces))


def scheme_of(name: str) -> str:
    """A name as the beginning of a URI's scheme may be."""
    text = re.sub(r"[^A-Za-z0-9.-]", "-", name)
    return text if text[:1].isalpha() else f"s-{text}"
