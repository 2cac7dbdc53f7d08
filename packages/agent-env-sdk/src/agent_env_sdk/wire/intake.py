"""The intake declaration: what a server says that its data plane takes and gives, and whether a seed fits it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from .card import Extension
from .names import INTAKE


class IntakeFormat(BaseModel):
    """One shape in which data is taken or given."""

    model_config = ConfigDict(frozen=True, validate_by_name=True, validate_by_alias=True, serialize_by_alias=True, defer_build=True)

    part: Literal["data", "file", "text"]
    format: str
    """What the content is, such as `json`, `csv` or `zip-bundle`."""
    mime_types: list[str] | None = Field(default=None, alias="mimeTypes")
    load: Literal["additive", "replace"] | None = None
    """Whether what is added joins what is there, or takes its place."""
    bundle_layout: str | None = Field(default=None, alias="bundleLayout")
    tables: dict[str, dict[str, Any]] | None = None
    """By collection: the JSON Schema of a row."""


class IntakeDeclaration(BaseModel):
    """What `data/add` takes and `data/get` gives. A server without one claims nothing."""

    model_config = ConfigDict(frozen=True, defer_build=True)

    add: list[IntakeFormat] | None = None
    get: list[IntakeFormat] | None = None

    def extension(self, description: str = "What data/add takes and data/get gives.") -> Extension:
        """The declaration as a card carries it."""
        return Extension(uri=INTAKE, description=description, params=self.model_dump(mode="json", exclude_none=True))


def misfits(declaration: Mapping[str, Any] | None, seed: Mapping[str, Any], content_format: str = "json") -> list[str]:
    """Why a seed doesn't fit what a server declares; empty when it fits, or when nothing is declared.

    Extra fields and values that aren't collections are nobody's business here: servers export more than they load.

    Args:
        declaration: The intake extension's params, or None.
        seed: Collections of rows.
        content_format: The seed's format.
    """
    if not declaration:
        return []
    formats = [entry for entry in declaration.get("add") or [] if isinstance(entry, Mapping)]
    taken = next((entry for entry in formats if (entry.get("part"), entry.get("format")) == ("data", content_format)), None)
    if taken is None:
        accepted = ", ".join(f"{entry.get('part')}/{entry.get('format')}" for entry in formats) or "nothing"
        return [f"data/add does not take inline data in format {content_format}; it takes {accepted}"]
    tables = taken.get("tables")
    return list(_misfits(tables, seed)) if tables else []


def _misfits(tables: Mapping[str, Any], seed: Mapping[str, Any]) -> Iterator[str]:
    for collection, rows in seed.items():
        if not isinstance(rows, list):
            continue
        if collection not in tables:
            yield f"collection {collection!r} is not taken; declared are {', '.join(sorted(tables))}"
            continue
        required = (tables[collection] or {}).get("required") or []
        for index, row in enumerate(rows):
            missing = [name for name in required if isinstance(row, Mapping) and name not in row]
            if missing:
                yield f"{collection}[{index}] lacks the required {', '.join(missing)}"
