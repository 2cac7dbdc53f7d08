"""What an agent shows to be let in: stateless tokens that *are* a role, and session ids that carry what the session agreed on.

Both are made with one key that only the gateway and whoever deployed it know, so they hold over every restart.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

PREFIX = "aet_"
_NONCE_BYTES = 12


@dataclass(frozen=True, slots=True)
class AgentToken:
    """What a valid token says."""

    role: str
    nonce: str


@dataclass(frozen=True, slots=True)
class SessionId:
    """What a valid session id says: whose it is, which protocol revision was agreed, the key that its calls carry, and what its client can
    be asked.
    """

    role: str
    version: str
    key: str
    abilities: Sequence[str] = ()


def agent_token(key: bytes, role: str, *, nonce: str | None = None) -> str:
    """A token for a role.

    Args:
        key: The gateway's control key.
        role: The role that whoever shows the token has.
        nonce: What tells two tokens of one role apart; random by default. Only letters, digits, `-` and `_`.

    Raises:
        ValueError: No header could carry such a role.
    """
    if not is_role(role):
        raise ValueError(f"{role!r} can't be a role: it is empty, or holds what is not printable")
    nonce = nonce if nonce is not None else secrets.token_urlsafe(_NONCE_BYTES)
    return f"{PREFIX}{_encode(role.encode())}.{nonce}.{_mac(key, f'agent:{role}:{nonce}')}"


def is_role(value: object) -> bool:
    """Whether something can be a role: a text that a header can carry."""
    return isinstance(value, str) and bool(value.strip()) and value.isprintable()


def read_token(key: bytes, token: str) -> AgentToken | None:
    """What the token says, or None where this key did not make it."""
    parts = token.removeprefix(PREFIX).split(".") if token.startswith(PREFIX) and token.isascii() else []
    if len(parts) != 3:
        return None
    role = _decode(parts[0])
    if role is None or not hmac.compare_digest(parts[2], _mac(key, f"agent:{role}:{parts[1]}")):
        return None
    return AgentToken(role, parts[1])


def session_id(key: bytes, role: str, version: str, abilities: Sequence[str] = ()) -> tuple[str, SessionId]:
    """A new session's id, and what it says."""
    session = SessionId(role, version, secrets.token_hex(16), tuple(abilities))
    body = _encode(json.dumps([session.role, session.version, session.key, *([session.abilities] if abilities else [])]).encode())
    return f"{body}.{_mac(key, f'session:{body}')}", session


def read_session(key: bytes, text: str) -> SessionId | None:
    """What a session id says, or None where this key did not make it."""
    body, _, mac = text.partition(".")
    if not text.isascii() or not hmac.compare_digest(mac, _mac(key, f"session:{body}")):
        return None
    inner = _decode(body)
    return SessionId(*json.loads(inner)) if inner is not None else None


def _mac(key: bytes, text: str) -> str:
    return _encode(hmac.digest(key, text.encode("utf-8", "surrogatepass"), hashlib.sha256))


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _decode(text: str) -> str | None:
    try:
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode()
    except ValueError:
        return None
