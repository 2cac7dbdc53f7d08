"""Grants: short-lived permission to read or write one object, or to upload under one root, by plain HTTPS.

All models are closed: a key that isn't known is refused, since a limit that is misspelled would be no limit. Addresses, forms
and headers are left out of `repr`, because they carry the permission itself.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictInt, model_validator

_MEDIA_TYPE = re.compile(r"[A-Za-z0-9!#$&^_.+-]+/[A-Za-z0-9!#$&^_.+-]+")
_SHA256 = re.compile(r"[0-9a-f]{64}")


def _https(value: str) -> str:
    parts = urlsplit(value)
    if parts.scheme != "https" or not parts.netloc:
        raise ValueError("must be an absolute HTTPS URL")
    return value


def _utc(value: datetime) -> datetime:
    offset = value.utcoffset()
    if offset is None or offset.total_seconds() != 0:
        raise ValueError("must be an RFC 3339 timestamp in UTC")
    return value


def _media_type(value: str) -> str:
    if not _MEDIA_TYPE.fullmatch(value):
        raise ValueError("must be a media type without parameters, such as application/json")
    return value


def _sha256(value: str) -> str:
    if not _SHA256.fullmatch(value):
        raise ValueError("must be 64 lowercase hexadecimal digits")
    return value


def _relative_path(value: str) -> str:
    if "\\" in value or any(segment in {"", ".", ".."} for segment in value.split("/")):
        raise ValueError("must be a normal relative POSIX path")
    return value


HttpsUrl = Annotated[str, AfterValidator(_https)]
UtcTimestamp = Annotated[datetime, AfterValidator(_utc)]
MediaType = Annotated[str, AfterValidator(_media_type)]
Sha256 = Annotated[str, AfterValidator(_sha256)]
RelativePath = Annotated[str, AfterValidator(_relative_path)]
Positive = Annotated[StrictInt, Field(gt=0)]
Size = Annotated[StrictInt, Field(ge=0)]


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class HttpGetGrant(_Closed):
    """May read one address."""

    kind: Literal["http-get"] = "http-get"
    url: HttpsUrl = Field(repr=False)
    expires_at: UtcTimestamp
    headers: dict[str, str] | None = Field(default=None, repr=False)


class HttpPutGrant(_Closed):
    """May write one address."""

    kind: Literal["http-put"] = "http-put"
    url: HttpsUrl = Field(repr=False)
    expires_at: UtcTimestamp
    headers: dict[str, str] | None = Field(default=None, repr=False)


class HttpPostPolicyGrant(_Closed):
    """May post files with a signed form."""

    kind: Literal["http-post-policy"] = "http-post-policy"
    url: HttpsUrl = Field(repr=False)
    fields: dict[str, str] = Field(repr=False)
    path_field: str = Field(min_length=1)
    """The form field that names the object, under the namespace's root."""
    file_field: str = Field(min_length=1)
    """The form field that carries the content."""
    headers: dict[str, str] | None = Field(default=None, repr=False)


class WriteNamespaceGrant(_Closed):
    """May upload several objects under one root."""

    root_path: RelativePath
    expires_at: UtcTimestamp
    max_objects: Positive
    max_object_bytes: Positive
    max_total_bytes: Positive
    write: HttpPostPolicyGrant


class ReadObject(_Closed):
    """One object to download, with what is known of it."""

    media_type: MediaType
    max_bytes: Positive
    size_bytes: Size | None = None
    sha256: Sha256 | None = None
    read: HttpGetGrant

    @model_validator(mode="after")
    def _size_fits(self) -> Self:
        if self.size_bytes is not None and self.size_bytes > self.max_bytes:
            raise ValueError("size_bytes must not exceed max_bytes")
        return self


class WriteObject(_Closed):
    """One object to upload."""

    media_type: MediaType
    max_bytes: Positive
    write: HttpPutGrant


class Uploaded(_Closed):
    """What an upload came to."""

    size_bytes: Size
    sha256: Sha256 | None = None
