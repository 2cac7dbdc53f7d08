"""Errors that a server answers with a code instead of a crash, and how they are spelled on the wire."""

from __future__ import annotations

from typing import Any, Literal

Applied = Literal["yes", "no", "unknown"]
"""Whether the call had its effect: `unknown` when it may have been delivered before something failed."""

_APPLIED: dict[Any, Applied] = {"yes": "yes", "no": "no"}


class AgentEnvError(Exception):
    """Raised by a tool or an extension to answer its caller on purpose.

    An extension answers with `status` and these fields as its error body; a tool answers `isError` with the text
    `<code>: <message>` and the fields as structured content. Callers repeat a call by themselves only when it is
    `retryable` and `applied` is `no`.

    Args:
        code: A stable word that programs compare, such as `insufficient`.
        message: What went wrong, for whoever called.
        status: The HTTP status of an extension's answer.
        retryable: Whether the same call may succeed later.
        applied: Whether the effect happened.
        hint: What the caller can do about it.
    """

    def __init__(
        self, code: str, message: str, *, status: int = 400, retryable: bool = False, applied: Applied = "no", hint: str | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.status = status
        self.retryable = retryable
        self.applied: Applied = applied
        self.hint = hint

    def fields(self) -> dict[str, Any]:
        """The error as the wire carries it; `hint` only when there is one."""
        fields: dict[str, Any] = {"code": self.code, "message": self.message, "retryable": self.retryable, "applied": self.applied}
        return fields if self.hint is None else {**fields, "hint": self.hint}

    def body(self) -> dict[str, Any]:
        """The JSON body of an extension's error answer."""
        return error_body(**self.fields())


def error_body(code: str, message: str, **fields: Any) -> dict[str, Any]:
    """The body of an answer that refuses or fails: `{"ok": false, "error": {...}}`."""
    return {"ok": False, "error": {"code": code, "message": message, **fields}}


def read_error(body: object, status: int) -> AgentEnvError:
    """The error in an answer's body, as far as it has one.

    A body without the fields (a proxy's own page, a server of another making) becomes code `http_<status>` with `applied`
    unknown, so that nobody repeats a call that may have happened.
    """
    error = body.get("error") if isinstance(body, dict) else None
    fields: dict[str, Any] = error if isinstance(error, dict) else {"message": error} if isinstance(error, str) else {}
    return AgentEnvError(
        str(fields.get("code") or f"http_{status}"),
        str(fields.get("message") or f"the server answered with status {status}"),
        status=status,
        retryable=fields.get("retryable") is True,
        applied=_APPLIED.get(fields.get("applied"), "unknown"),
        hint=fields.get("hint") if isinstance(fields.get("hint"), str) else None,
    )
