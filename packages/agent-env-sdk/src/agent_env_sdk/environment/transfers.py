"""Moving objects under grants: download, upload, and uploads under one root, by plain HTTPS.

Nothing follows redirects, sizes and digests are checked while the bytes pass, and a grant's address is in no error and no
log: it is the permission. What may succeed later is tried again, up to three times and only while the grant holds.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import logging
import os
import random
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import unquote, urlsplit

import anyio
from pydantic import ConfigDict, TypeAdapter, ValidationError

from agent_env_sdk.wire.errors import AgentEnvError
from agent_env_sdk.wire.grants import ReadObject, RelativePath, Uploaded, WriteNamespaceGrant, WriteObject
from agent_env_sdk.wire.names import STAGING_HEADER
from agent_env_sdk.wire.parts import FilePart, uploaded_part

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")
ATTEMPTS: Final = 3
BACKOFF_SECONDS: Final = 1.0
CONNECT_SECONDS: Final = 30.0
IDLE_SECONDS: Final = 60.0
CHUNK_BYTES: Final = 64 * 1024
_OCTETS: Final = "application/octet-stream"

_CODES: Final[Mapping[str, tuple[int, bool]]] = {
    "invalid_transfer": (400, False),
    "grant_expired": (410, False),
    "transfer_too_large": (413, False),
    "integrity_mismatch": (422, False),
    "transfer_rejected": (502, False),
    "transfer_unavailable": (502, True),
    "transfer_timeout": (504, True),
}
"""By code: the HTTP status, and whether a further attempt may succeed."""

_path = TypeAdapter(RelativePath, config=ConfigDict(defer_build=True))
_port: ContextVar[int | None] = ContextVar("agent_env_serving_port", default=None)
_quiet: ContextVar[bool] = ContextVar("agent_env_quiet_transfers", default=False)


class TransferError(AgentEnvError):
    """A transfer that didn't happen.

    Args:
        code: One of the wire's codes for transfers.
        message: What went wrong, without the address.
    """

    def __init__(self, code: str, message: str) -> None:
        status, retryable = _CODES[code]
        super().__init__(code, message, status=status, retryable=retryable)


@contextmanager
def serving_on(port: int) -> Iterator[None]:
    """In the block, grants that name a path on this server's own staging are used over loopback, at this port."""
    token = _port.set(port)
    try:
        yield
    finally:
        _port.reset(token)


async def download(source: ReadObject, destination: Path) -> Uploaded:
    """Reads an object into a file, which appears whole or not at all.

    Returns:
        Its size and digest.

    Raises:
        TransferError: It can't be read, is longer than allowed, or isn't what the grant says.
    """

    async def get() -> Uploaded:
        with _beside(destination) as part:
            async with _request("GET", source.read.url, source.read.headers, {"accept-encoding": "identity"}) as response:
                came = await _received(response, source, part)
            _keep(part, destination)
        return came

    return await _attempted(source.read.expires_at, get)


async def upload(target: WriteObject, source: Path | bytes) -> Uploaded:
    """Writes an object.

    Returns:
        Its size and digest.

    Raises:
        TransferError: It is longer than allowed, or can't be written.
    """
    size = _size(source, target.max_bytes)

    async def put() -> Uploaded:
        with _open(source) as stream:
            content = _Content(stream, size)
            headers = {"content-type": target.media_type, "content-length": str(size)}
            async with _request("PUT", target.write.url, target.write.headers, headers, content=content.pieces()):
                return content.sent()

    return await _attempted(target.write.expires_at, put)


class NamespaceUploader:
    """Uploads under one granted root, within its limits.

    Args:
        grant: The permission.
    """

    def __init__(self, grant: WriteNamespaceGrant) -> None:
        self._grant = grant
        self._objects = 0
        self._bytes = 0

    async def upload(self, relative_path: str, source: Path | bytes) -> Uploaded:
        """Uploads one object.

        Args:
            relative_path: Where under the root: a normal POSIX path.
            source: A file, or the content.

        Raises:
            TransferError: `invalid_transfer` for a path that leaves the root, `transfer_too_large` beyond a limit, before
                anything is sent; others when it can't be sent.
        """
        grant = self._grant
        try:
            path = f"{grant.root_path}/{_path.validate_python(relative_path)}"
        except ValidationError:
            raise TransferError("invalid_transfer", f"{relative_path!r} is not a normal relative path") from None
        size = _size(source, min(grant.max_object_bytes, grant.max_total_bytes - self._bytes))
        if self._objects >= grant.max_objects:
            raise TransferError("transfer_too_large", f"the grant allows {grant.max_objects} objects")
        self._objects, self._bytes = self._objects + 1, self._bytes + size

        async def post() -> Uploaded:
            with _open(source) as stream:
                content = _Content(stream, size)
                form = {**grant.write.fields, grant.write.path_field: path}
                form.setdefault("Content-Type", _OCTETS)
                files = {grant.write.file_field: (path.rpartition("/")[2], content, _OCTETS)}
                async with _request("POST", grant.write.url, grant.write.headers, {}, data=form, files=files):
                    return content.sent()

        return await _attempted(grant.expires_at, post)


async def give(
    grant: WriteNamespaceGrant, path: str, source: Path | bytes, *, name: str | None = None, mime_type: str | None = None
) -> FilePart | None:
    """Uploads an export and gives the part that names it; None when the grant is too small, so that the caller answers inline.

    Raises:
        TransferError: The path leaves the root, or the upload failed.
    """
    try:
        await NamespaceUploader(grant).upload(path, source)
    except TransferError as error:
        if error.code == "transfer_too_large":
            return None
        raise
    return uploaded_part(path, name=name, mime_type=mime_type)


class _Content(io.RawIOBase):
    """A source that is counted and hashed as it is sent, and refused when it isn't as long as was said."""

    def __init__(self, stream: IO[bytes], size: int) -> None:
        self._stream, self._size = stream, size
        self._sent = 0
        self._digest = hashlib.sha256()

    def readable(self) -> bool:
        return True

    def fileno(self) -> int:  # so that the form's length is asked of `seek` and `tell`
        raise io.UnsupportedOperation

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if offset == 0 and whence == io.SEEK_SET:
            self._stream.seek(0)
            self._sent, self._digest = 0, hashlib.sha256()
            return 0
        return self._size if whence == io.SEEK_END else self._sent

    def tell(self) -> int:
        return self._sent

    def read(self, size: int = -1) -> bytes:
        chunk = self._stream.read(CHUNK_BYTES if size < 0 else size)
        self._sent += len(chunk)
        self._digest.update(chunk)
        if self._sent > self._size or (not chunk and self._sent < self._size):
            raise TransferError("invalid_transfer", "the source changed its length while it was sent")
        return chunk

    async def pieces(self) -> AsyncIterator[bytes]:
        while chunk := self.read(CHUNK_BYTES):
            yield chunk

    def sent(self) -> Uploaded:
        return Uploaded(size_bytes=self._sent, sha256=self._digest.hexdigest())


async def _received(response: httpx.Response, source: ReadObject, part: IO[bytes]) -> Uploaded:
    limit = source.max_bytes if source.size_bytes is None else source.size_bytes
    digest, length = hashlib.sha256(), 0
    async for chunk in response.aiter_raw(CHUNK_BYTES):
        length += len(chunk)
        if length > limit:
            code = "transfer_too_large" if source.size_bytes is None else "integrity_mismatch"
            raise TransferError(code, f"the object is longer than {limit} bytes")
        digest.update(chunk)
        part.write(chunk)
    if source.size_bytes is not None and length != source.size_bytes:
        raise TransferError("integrity_mismatch", f"the object has {length} bytes, not {source.size_bytes}")
    if source.sha256 is not None and digest.hexdigest() != source.sha256:
        raise TransferError("integrity_mismatch", "the object's SHA-256 is not the one that was granted")
    return Uploaded(size_bytes=length, sha256=digest.hexdigest())


async def _attempted(expires_at: datetime, attempt: Callable[[], Awaitable[T]]) -> T:
    for number in range(1, ATTEMPTS + 1):
        if datetime.now(UTC) >= expires_at:
            raise TransferError("grant_expired", "the grant has expired")
        try:
            return await attempt()
        except TransferError as error:
            if not error.retryable or number == ATTEMPTS:
                raise
        # Exponential, with jitter, so that many servers don't come back at once.
        await anyio.sleep(BACKOFF_SECONDS * 2 ** (number - 1) * random.uniform(0.5, 1.0))
    raise TransferError("transfer_unavailable", "no attempt succeeded")


@contextlib.asynccontextmanager
async def _request(
    verb: str, url: str, granted: Mapping[str, str] | None, headers: Mapping[str, str], **body: Any
) -> AsyncIterator[httpx.Response]:
    """A request to the granted address, or over loopback where the grant says that it leads back to this server."""
    import httpx

    sent = {**headers, **(granted or {})}
    quiet = _quiet.set(True)
    try:
        limits = httpx.Timeout(IDLE_SECONDS, connect=CONNECT_SECONDS, pool=CONNECT_SECONDS)
        async with httpx.AsyncClient(timeout=limits, follow_redirects=False) as client:
            response = await _reached(client, verb, url, sent, body)
            try:
                await _check(response)
                yield response
            finally:
                await response.aclose()
    except httpx.TimeoutException as error:
        raise TransferError("transfer_timeout", "the store did not answer in time") from error
    except httpx.TransportError as error:
        raise TransferError("transfer_unavailable", f"the store can't be reached: {type(error).__name__}") from error
    except httpx.InvalidURL as error:
        raise TransferError("invalid_transfer", "the grant's address is not a URL") from error
    finally:
        _quiet.reset(quiet)


async def _reached(client: httpx.AsyncClient, verb: str, url: str, headers: Mapping[str, str], body: Mapping[str, Any]) -> httpx.Response:
    import httpx

    near = _loopback(url, headers)
    if near is not None:
        with contextlib.suppress(httpx.ConnectError):
            return await client.send(client.build_request(verb, near, headers=dict(headers), **body), stream=True)
    return await client.send(client.build_request(verb, url, headers=dict(headers), **body), stream=True)


def _loopback(url: str, headers: Mapping[str, str]) -> str | None:
    path = next((value for name, value in headers.items() if name.lower() == STAGING_HEADER.lower()), None)
    port = _port.get() or int(os.environ.get("A2A_PORT") or 0)
    if path is None or not port or not path.startswith("/"):
        return None
    parts = urlsplit(url)
    if not (parts.path.endswith(path) or unquote(parts.path).endswith(path)):
        return None
    return f"http://127.0.0.1:{port}{path}{f'?{parts.query}' if parts.query else ''}"


async def _check(response: httpx.Response) -> None:
    status = response.status_code
    if response.is_success:
        return
    slow = status == HTTPStatus.BAD_REQUEST and b"<Code>RequestTimeout</Code>" in (await response.aread())
    code = "transfer_unavailable" if slow or status in {408, 429} or status >= HTTPStatus.INTERNAL_SERVER_ERROR else "transfer_rejected"
    raise TransferError(code, f"the store answered with status {status}")


def _size(source: Path | bytes, limit: int) -> int:
    try:
        size = len(source) if isinstance(source, bytes) else source.stat().st_size
    except OSError as error:
        raise TransferError("invalid_transfer", f"{source!r} can't be read: {error.strerror}") from error
    if size > limit:
        raise TransferError("transfer_too_large", f"{size} bytes are more than the {max(limit, 0)} that the grant still allows")
    return size


def _open(source: Path | bytes) -> IO[bytes]:
    return io.BytesIO(source) if isinstance(source, bytes) else source.open("rb")


@contextmanager
def _beside(destination: Path) -> Iterator[IO[bytes]]:
    """A file in the same folder that is gone afterwards, unless it was renamed."""
    with tempfile.NamedTemporaryFile(dir=destination.parent, prefix=f".{destination.name}.", delete=False) as part:
        try:
            yield part
        finally:
            Path(part.name).unlink(missing_ok=True)


def _keep(part: IO[bytes], destination: Path) -> None:
    part.close()
    Path(part.name).replace(destination)


class _Quiet(logging.Filter):
    """httpx logs each request's whole address."""

    def filter(self, record: logging.LogRecord) -> bool:
        del record  # whatever it says
        return not _quiet.get()


for _name in ("httpx", "httpcore.http11", "httpcore.connection", "httpcore.proxy"):
    logging.getLogger(_name).addFilter(_Quiet())
