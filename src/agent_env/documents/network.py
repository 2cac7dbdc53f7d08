"""What a sandbox may reach."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, model_validator


class NetworkMode(StrEnum):
    """`none` is ours; the other two are the reference's spelling."""

    ALLOW_ALL = "allow_all"
    ALLOWLIST = "allowlist"
    NONE = "none"


def _list_not_text(value: object) -> object:
    if isinstance(value, str | bytes):
        raise ValueError("is a list of entries, not one text")
    return value


Entries = Annotated[tuple[str, ...], BeforeValidator(_list_not_text)]


class NetworkPolicy(BaseModel):
    """Egress intent. An allow-list without entries denies everything."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    mode: NetworkMode = NetworkMode.ALLOW_ALL
    """What may be reached: everything, what is listed, or nothing."""
    allow_hosts: Entries = ()
    """For mode `allowlist`: `name`, `*.name` (what is below it) or an address, for ports 80 and 443; `name:port` for another, `name:*` for
    every port."""
    allow_cidrs: Entries = ()
    """For mode `allowlist`: ranges of public addresses, every port, for targets that are written as addresses."""

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        if "*" in self.allow_hosts:
            raise ValueError("a bare `*` host allows everything; use mode `allow_all`")
        return self

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.mode is not NetworkMode.ALLOWLIST and (self.allow_hosts or self.allow_cidrs):
            raise ValueError(f"mode `{self.mode}` takes no allow_hosts or allow_cidrs")
        return self

    @property
    def restricts_egress(self) -> bool:
        """Anything is denied."""
        return self.mode is not NetworkMode.ALLOW_ALL
