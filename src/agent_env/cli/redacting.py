"""What this process knows to be secret is taken out of everything that it says about errors."""

from __future__ import annotations

import os
from collections.abc import Callable

Redact = Callable[[str], str]


class Redacting:
    """Takes out the values of variables with secret names, and whatever an opened engine has resolved since."""

    def __init__(self) -> None:
        self._known: Redact | None = None
        self._further: list[Redact] = []

    def also(self, redact: Redact) -> None:
        """Adds somebody who knows more secrets."""
        self._further.append(redact)

    def __call__(self, text: str) -> str:
        """The text without secrets."""
        if self._known is None:
            from agent_env.redaction import Redactor, is_secret_key

            # Built on first use: most commands never say anything that could hold a secret.
            self._known = Redactor(value for name, value in os.environ.items() if is_secret_key(name.lower())).redact
        for redact in (self._known, *self._further):
            text = redact(text)
        return text
