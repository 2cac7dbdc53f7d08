"""Keeping secrets out of everything that is shown or stored: by value, in every spelling they may take, and by key.

A `Redactor` learns the values that a run resolves. It never shows them: it has no repr, no iteration and no way back.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import quote, quote_plus

if TYPE_CHECKING:
    import logging

MASK = "***"
MIN_LENGTH = 4
"""A shorter value is not searched for: it would blot out harmless text without protecting anything."""

_LINE_LENGTH = 16
# Patterns are texts, compiled at their first use: importing this module costs every command its start-up time.
_SECRET_KEY = (
    r"passw(or)?d|passphrase|secret|credential|api_?key|private_?key|access_?key|authorization|bearer|cookie"
    r"|(^|_)(auth|access|refresh|session|api|id|bot|user|remote)_?tokens?$|^tokens?$"
)
_CONFIG_KEY = r"password|passwd|passphrase|secret|token|credential|api_?key|private_?key|auth|bearer|headers"
_USER_INFO = r"(?i)(?P<scheme>\b[a-z][a-z0-9+.-]*://)[^\s/?#@]+@"
_TOKENS = (
    r"(?s)\bsk-[A-Za-z0-9_-]{16,}"  # model providers
    r"|\bgh[pousr]_[A-Za-z0-9]{20,}|\bgithub_pat_\w{20,}"
    r"|\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"
    r"|\bxox[abeoprs]-[A-Za-z0-9-]{10,}"
    r"|\bAIza[A-Za-z0-9_-]{30,}"
    r"|\bhf_[A-Za-z0-9]{20,}"
    r"|\beyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
)
_REFERENCE = r"(?s)(?P<name>(?:env|secret):[^?\s]+)(?P<default>\?.*)?"

T = TypeVar("T")


@lru_cache(maxsize=1024)
def is_secret_key(key: str) -> bool:
    """A key whose text values are secrets wherever they appear (`api_key`, `password`, `Authorization` …)."""
    return re.search(_SECRET_KEY, _folded(key)) is not None


def is_masked_config_key(key: str) -> bool:
    """A key of a configuration whose whole subtree is masked when it is shown (reference: wider than `is_secret_key`)."""
    return re.search(_CONFIG_KEY, _folded(key)) is not None


def mask_config(value: Any, key: str = "") -> Any:
    """A configuration value as it may be shown: secrets and user info of URLs masked, references shown without their default."""
    if isinstance(value, str):
        reference = re.fullmatch(_REFERENCE, value)
        if reference:
            return reference["name"] + (f"?{MASK}" if reference["default"] else "")
    if key == "tokens" and isinstance(value, int):
        return value  # a number of them, such as a budget's
    if key and is_masked_config_key(key) and not isinstance(value, Mapping):
        return MASK if value not in (None, "", [], False, True) else value
    match value:
        case Mapping():
            hidden = bool(key) and is_masked_config_key(key)
            return {name: mask_config(member, key if hidden else str(name)) for name, member in value.items()}
        case list() | tuple():
            return [mask_config(member) for member in value]
        case str():
            return mask_user_info(value)
        case _:
            return value


def mask_user_info(text: str) -> str:
    """`scheme://user:password@host` with user and password masked."""
    return re.sub(_USER_INFO, rf"\g<scheme>{MASK}@", text) if "@" in text else text


def mask_tokens(text: str) -> str:
    """The text with what looks like a key of a known service masked, and with user info of URLs."""
    return re.sub(_TOKENS, MASK, mask_user_info(text))


def looks_secret(value: Any) -> bool:
    """A text that holds what looks like a key of a known service, or a URL with user info."""
    return isinstance(value, str) and mask_tokens(value) != value


def _folded(key: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", key).replace("-", "_").lower()


class Redactor:
    """Blots out registered values. Adding is safe while other threads redact."""

    __slots__ = ("_bytes", "_forms", "_text", "_values")

    def __init__(self, values: Iterable[str] = ()) -> None:
        self._values: frozenset[str] = frozenset()
        self._forms: tuple[bytes, ...] = ()
        self._bytes: re.Pattern[bytes] | None = None
        self._text: re.Pattern[str] | None = None
        self.add(*values)

    def add(self, *values: str) -> None:
        """Registers secrets. Values under `MIN_LENGTH` characters and known ones change nothing."""
        new = {value for value in values if len(value.strip()) >= MIN_LENGTH} - self._values
        if not new:
            return
        self._values = self._values | new
        forms = sorted({form for value in self._values for form in _forms(value)}, key=lambda form: (-len(form), form))
        self._forms = tuple(form.encode("utf-8", "surrogatepass") for form in forms)
        self._bytes = re.compile(_alternation([form.decode("latin-1") for form in self._forms]).encode("latin-1"))
        self._text = re.compile(_alternation(forms))

    def redact(self, value: T) -> T:
        """The value without secrets: text and bytes by value; lists and objects also by key. What holds none comes back as it is."""
        return cast("T", self._redacted(value))

    def stream(self) -> StreamRedactor:
        """Redacts one stream of chunks, also where a secret is cut by a chunk's edge."""
        return StreamRedactor(self)

    def __repr__(self) -> str:
        return f"Redactor({len(self._values)} values)"

    def __reduce__(self) -> str:
        raise TypeError("a Redactor is not copied to other processes: it holds secrets")

    def _redacted(self, value: Any) -> Any:
        match value:
            case str():
                return self._text.sub(MASK, value) if self._text is not None else value
            case None | int() | float():
                return value
            case bytes():
                return self._bytes.sub(MASK.encode(), value) if self._bytes is not None else value
            case dict() | Mapping():
                made = {self._redacted(key): self._member(key, member) for key, member in value.items()}
                same = len(made) == len(value) and all(
                    k1 is k2 and a is b for (k1, a), (k2, b) in zip(made.items(), value.items(), strict=True)
                )
                return value if same else made
            case list() | tuple():
                items = [self._redacted(member) for member in value]
                return value if all(a is b for a, b in zip(items, value, strict=True)) else items
            case _:
                return value

    def _member(self, key: Any, value: Any) -> Any:
        if isinstance(key, str) and value and is_secret_key(key):
            if isinstance(value, str):
                return value if re.fullmatch(_REFERENCE, value) and "?" not in value else MASK
            if isinstance(value, list | tuple) and all(isinstance(member, str) for member in value):
                return [MASK] * len(value)
        return self._redacted(value)


class StreamRedactor:
    """See `Redactor.stream`. It holds back no more than what may be the beginning of a secret."""

    __slots__ = ("_held", "_redactor")

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._held = b""

    def feed(self, chunk: bytes) -> bytes:
        """What can be shown now."""
        data, self._held = self._held + chunk, b""
        pattern, forms = self._redactor._bytes, self._redactor._forms
        if pattern is None:
            return data
        shown, position = [], 0
        longest = len(forms[0])
        for match in pattern.finditer(data):
            if len(data) - match.start() < longest and (
                _begins_longer(data[match.start() :], forms, len(match[0]))
                or _held_from(data, max(position, len(data) - longest + 1), forms) < match.start()  # this is a line of a longer one
            ):
                break
            shown += [data[position : match.start()], MASK.encode()]
            position = match.end()
        start = _held_from(data, max(position, len(data) - longest + 1), forms)
        self._held = data[start:]
        return b"".join([*shown, data[position:start]])

    def flush(self) -> bytes:
        """The rest, at the end of the stream."""
        data, self._held = self._held, b""
        return self._redactor.redact(data)


def _alternation(forms: list[str]) -> str:
    """One pattern for all forms, the longest first. Common beginnings are tried once, so that many secrets cost little more than one."""
    by_first: dict[str, list[str]] = {}
    for form in forms:
        by_first.setdefault(form[:1], []).append(form)
    branches = []
    for first, group in sorted(by_first.items(), reverse=True):  # the empty rest, a form that ends here, comes last
        common = _common_start(group)
        branches.append(re.escape(first) if len(group) == 1 and group[0] == first else re.escape(common) + _rest(group, len(common)))
    return branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})"


def _rest(group: list[str], length: int) -> str:
    rest = [form[length:] for form in group]
    return "" if rest == [""] else _alternation(rest)


def _common_start(group: list[str]) -> str:
    low, high = min(group), max(group)
    length = next((i for i, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), min(len(low), len(high)))
    return low[:length]


def _begins_longer(tail: bytes, forms: tuple[bytes, ...], length: int) -> bool:
    """The data's end may be the beginning of a form that is longer than what matched there."""
    return any(len(form) > max(length, len(tail)) and form.startswith(tail) for form in forms)


def _held_from(data: bytes, start: int, forms: tuple[bytes, ...]) -> int:
    firsts: dict[int, list[bytes]] = {}
    for form in forms:
        firsts.setdefault(form[0], []).append(form)
    for position in range(start, len(data)):
        candidates = firsts.get(data[position])
        if candidates and any(form.startswith(data[position:]) for form in candidates):
            return position
    return len(data)


def _forms(value: str) -> Iterator[str]:
    """The spellings under which a value may turn up: as it is, escaped, encoded, line by line."""
    yield from _plain_forms(value)
    lines = [line.strip() for line in value.splitlines()]
    if len(lines) > 1:
        yield from (line for line in lines if len(line) >= _LINE_LENGTH and not line.startswith("-----"))
    if value != value.strip():
        yield from _plain_forms(value.strip())


def _plain_forms(value: str) -> Iterator[str]:
    raw = value.encode("utf-8", "surrogatepass")
    yield value
    yield json.dumps(value)[1:-1]
    yield json.dumps(value, ensure_ascii=False)[1:-1]
    yield repr(value)[1:-1]
    yield quote(raw, safe="")
    yield quote(raw)
    yield quote_plus(raw)
    yield value.replace("'", "'\\''")
    if len(raw) * 2 >= _LINE_LENGTH:
        yield raw.hex()
        yield raw.hex().upper()
    yield from _base64_forms(raw)


def _base64_forms(raw: bytes) -> Iterator[str]:
    """What base64 makes of the value, alone or in the middle of something longer (`user:value`), in both alphabets."""
    for shift in range(3):
        encoded = base64.b64encode(b"\0" * shift + raw).decode().rstrip("=")
        # Characters that also depend on the neighbouring bytes are left out at both ends.
        first = -(-shift * 8 // 6)
        last = (shift + len(raw)) * 8 // 6
        inner = encoded[first:last]
        if len(inner) >= MIN_LENGTH + 2:
            yield inner
            yield inner.replace("+", "-").replace("/", "_")


def redacting_filter(redactor: Redactor) -> logging.Filter:
    """A filter for log handlers: message, arguments and traceback are redacted before anything formats them."""
    import logging

    plain = logging.Formatter()

    class _Filter(logging.Filter):
        def filter(self, record: logging.LogRecord) -> bool:
            record.msg, record.args = redactor.redact(record.getMessage()), None
            if record.exc_info and not record.exc_text:
                record.exc_text = plain.formatException(record.exc_info)
            if record.exc_text:
                record.exc_text = redactor.redact(record.exc_text)
            return True

    return _Filter()
