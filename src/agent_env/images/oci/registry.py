"""A client of registries (the OCI distribution API) over HTTP: manifests and blobs, tokens, resumed and verified downloads."""

from __future__ import annotations

import hashlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar
from urllib.parse import urlsplit

from agent_env.defaults import DEFAULT_LIMITS, MIB, Limits
from agent_env.errors import ImageNotFoundError, ImageUnavailableError, StorageError, TransferError, UnsupportedError
from agent_env.images.answers import LOGIN_HINT, PATIENCE
from agent_env.images.credentials import Credentials, Keyring, KnownKeyring
from agent_env.images.oci.manifests import ACCEPTED, Descriptor
from agent_env.images.reference import DOCKER_HUB, ImageReference, digest_of, is_digest, is_loopback
from agent_env.waiting import back_off, deadline

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")

_HUB_HOST = "registry-1.docker.io"
_AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})
_PARAMETER = re.compile(r'(\w+)=(?:"([^"]*)"|([^\s,]+))')


class _AgainError(ImageUnavailableError):
    """An attempt failed in a way that another one may not."""

    asked_too_often = False


class Registry:
    """One registry. `async with`, or `aclose`.

    Args:
        host: `host[:port]`. On this machine's loopback it is spoken to in plain HTTP, elsewhere always in HTTPS.
        keyring: Asked for credentials once, when the registry asks for some.
    """

    def __init__(self, host: str, *, keyring: Keyring | None = None, limits: Limits = DEFAULT_LIMITS) -> None:
        self._name = "Docker Hub" if host == DOCKER_HUB else host
        self._host = host
        self._keyring = keyring or KnownKeyring({})
        self._limits = limits
        self._client: httpx.AsyncClient | None = None
        self._authorization: dict[str, str] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Closes connections."""
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    async def manifest(self, reference: ImageReference, version: str | None = None) -> tuple[bytes, str, str]:
        """A manifest or index.

        Args:
            reference: Names the repository.
            version: A tag or digest; None takes the reference's own.

        Returns:
            Its bytes, media type, and digest, which is verified.

        Raises:
            ImageNotFoundError: There is none.
            ImageUnavailableError: The registry can't be reached, or refuses.
            TransferError: What came is not what the digest says.
            DeadlineError: It took too long.
        """
        wanted = version or reference.version
        path = f"/v2/{reference.repository}/manifests/{wanted}"

        async def once() -> tuple[bytes, str, str]:
            async with self._get(path, reference, {"Accept": ACCEPTED}) as response:
                data = await self._bounded(response, reference)
                said = response.headers.get("Docker-Content-Digest")
                digest = wanted if is_digest(wanted) else said if is_digest(said or "") and said else digest_of(data)
                if not _is_content_of(data, digest):
                    raise TransferError(f"{self._name} sent another manifest than {digest}", concerns=str(reference))
                return data, response.headers.get("Content-Type", ""), digest

        async with deadline(self._limits.image_pull_seconds, f"the manifest of {reference}"):
            return await self._with_attempts(once)

    async def small_blob(self, reference: ImageReference, descriptor: Descriptor) -> bytes:
        """A blob that fits in memory, such as an image's configuration.

        Raises:
            AgentEnvError: As `manifest`.
        """
        path = f"/v2/{reference.repository}/blobs/{descriptor.digest}"

        async def once() -> bytes:
            async with self._get(path, reference, {}) as response:
                data = await self._bounded(response, reference)
            if not _is_content_of(data, descriptor.digest):
                raise _AgainError(f"{self._name} sent something else than {descriptor.digest}", concerns=str(reference))
            return data

        async with deadline(self._limits.image_pull_seconds, f"{descriptor.digest} of {reference}"):
            return await self._with_attempts(once)

    async def blob(
        self, reference: ImageReference, descriptor: Descriptor, into: Path, told: Callable[[int], None] = lambda _: None
    ) -> None:
        """Fetches a blob into a file, going on where an earlier attempt broke off, also another process's.

        Args:
            reference: Names the repository.
            descriptor: What is fetched; its digest is verified.
            into: The file; what it holds is taken for the beginning. Removed when it turns out to be wrong.
            told: Told how many bytes there are.

        Raises:
            AgentEnvError: As `manifest`; `StorageError` when the file can't be written.
        """
        partial = _Partial(into, descriptor, told)

        async def once() -> None:
            partial.reopen()
            if partial.size < descriptor.size:
                await self._fetch(reference, descriptor, partial)
            partial.verify(self._name)

        try:
            async with deadline(self._limits.image_pull_seconds, f"{descriptor.digest} of {reference}"):
                await self._with_attempts(once)
        except OSError as error:
            raise StorageError(f"a layer can't be written: {error.strerror}", concerns=str(into)) from error
        finally:
            partial.close()

    async def _fetch(self, reference: ImageReference, descriptor: Descriptor, partial: _Partial) -> None:
        import httpx

        headers = {"Accept-Encoding": "identity", **({"Range": f"bytes={partial.size}-"} if partial.size else {})}
        path = f"/v2/{reference.repository}/blobs/{descriptor.digest}"
        async with self._get(path, reference, headers) as response:
            if partial.size and response.status_code != 206:
                partial.restart()
            try:
                async for chunk in response.aiter_raw():
                    partial.add(chunk)
            except httpx.HTTPError as error:
                raise _AgainError(f"{self._name} broke off after {partial.size} bytes: {_said(error)}", concerns=str(reference)) from error

    async def _bounded(self, response: httpx.Response, reference: ImageReference) -> bytes:
        import httpx

        data = bytearray()
        try:
            async for chunk in response.aiter_bytes():
                data += chunk
                if len(data) > self._limits.image_manifest_bytes:
                    raise UnsupportedError(
                        f"{self._name} describes {reference} in more than {self._limits.image_manifest_bytes} bytes",
                        concerns=str(reference),
                        hint="raise the limit image_manifest_bytes",
                    )
        except httpx.HTTPError as error:
            raise _AgainError(f"{self._name} broke off: {_said(error)}", concerns=str(reference)) from error
        return bytes(data)

    @asynccontextmanager
    async def _get(self, path: str, reference: ImageReference, headers: dict[str, str]) -> AsyncIterator[httpx.Response]:
        import httpx

        scope = f"repository:{reference.repository}:pull"
        client = self._opened()
        for challenged in (False, True):
            known = {"Authorization": self._authorization[scope]} if scope in self._authorization else {}
            request = client.build_request("GET", path, headers={**headers, **known})
            try:
                response = await client.send(request, stream=True)
            except (httpx.TransportError, httpx.TooManyRedirects) as error:
                message = f"{self._name} can't be reached for {reference}: {_said(error)}"
                refused = isinstance(error, httpx.ConnectError) and is_loopback(self._host)
                kind = ImageUnavailableError if refused else _AgainError
                raise kind(message, concerns=str(reference), hint="check its name and this machine's network") from error
            try:
                if response.status_code == 401 and not challenged:
                    self._authorization[scope] = await self._answer_to(response.headers.get_list("WWW-Authenticate"), scope, reference)
                    continue
                self._check(response, reference)
                yield response
                return
            finally:
                await response.aclose()

    def _check(self, response: httpx.Response, reference: ImageReference) -> None:
        status, concerns = response.status_code, str(reference)
        if response.is_success:
            return
        self._authorization.clear()
        if status == 404:
            raise ImageNotFoundError(f"{self._name} has no image {reference}", concerns=concerns, hint="check its name and tag")
        if status in {401, 403}:
            raise ImageUnavailableError(f"{self._name} refuses {reference} (HTTP {status})", concerns=concerns, hint=LOGIN_HINT)
        message = f"{self._name} answers HTTP {status} for {reference}"
        if status in _AGAIN:
            error = _AgainError(message, concerns=concerns, hint=LOGIN_HINT if status == 429 else None)
            error.asked_too_often = status == 429
            raise error
        raise ImageUnavailableError(message, concerns=concerns)

    async def _answer_to(self, challenges: list[str], scope: str, reference: ImageReference) -> str:
        """An `Authorization` for what a registry asks."""
        credentials = await self._keyring.of(self._host)
        for challenge in challenges:
            scheme, _, rest = challenge.partition(" ")
            if scheme.lower() == "bearer":
                asked = {name: quoted or plain for name, quoted, plain in _PARAMETER.findall(rest)}
                return f"Bearer {await self._token(asked, scope, credentials, reference)}"
            if scheme.lower() == "basic" and credentials is not None:
                return credentials.basic()
        raise ImageUnavailableError(f"{self._name} asks who is there", concerns=str(reference), hint=LOGIN_HINT)

    async def _token(self, asked: dict[str, str], scope: str, credentials: Credentials | None, reference: ImageReference) -> str:
        import httpx

        realm = asked.get("realm", "")
        where = urlsplit(realm)
        # Whoever answers for a registry must not get a password by naming an address that anybody can listen to.
        if where.scheme != "https" and not (where.scheme == "http" and is_loopback(where.netloc)):
            raise ImageUnavailableError(f"{self._name} sends us to {realm!r} for a token, which is not safe", concerns=str(reference))
        query = {"service": asked.get("service", ""), "scope": asked.get("scope") or scope}
        client = self._opened()
        try:
            if credentials is not None and credentials.identity_token is not None:
                grant = {"grant_type": "refresh_token", "refresh_token": credentials.identity_token.reveal(), "client_id": "agent-env"}
                answer = await client.post(realm, data={**grant, **query}, follow_redirects=False)  # it would go along
            else:
                headers = {"Authorization": credentials.basic()} if credentials is not None else {}
                answer = await client.get(realm, params=query, headers=headers)
        except httpx.HTTPError as error:
            raise _AgainError(f"{where.netloc} gives no token: {_said(error)}", concerns=str(reference)) from error
        if answer.status_code in _AGAIN:
            raise _AgainError(f"{where.netloc} gives no token (HTTP {answer.status_code})", concerns=str(reference))
        try:
            facts = answer.json() if answer.is_success else None
        except (ValueError, RecursionError):
            facts = None
        token = facts.get("token") or facts.get("access_token") if isinstance(facts, dict) else None
        if not token:
            raise ImageUnavailableError(
                f"{self._name} refuses {reference} (no token, HTTP {answer.status_code})", concerns=str(reference), hint=LOGIN_HINT
            )
        return str(token)

    async def _with_attempts(self, once: Callable[[], Awaitable[T]]) -> T:
        patience = 0
        for attempt in range(1, self._limits.image_pull_attempts + 1):
            if attempt > 1:
                await back_off(attempt + patience, limits=self._limits)
            try:
                return await once()
            except _AgainError as error:
                last, patience = error, PATIENCE if error.asked_too_often else 0
        raise ImageUnavailableError(last.message, concerns=last.concerns, hint=last.hint) from last

    def _opened(self) -> httpx.AsyncClient:
        import httpx

        if self._client is None:
            local = is_loopback(self._host)
            host = _HUB_HOST if self._host == DOCKER_HUB else self._host
            self._client = httpx.AsyncClient(
                base_url=f"{'http' if local else 'https'}://{host}",
                follow_redirects=True,
                trust_env=not local,
                timeout=httpx.Timeout(self._limits.connect_seconds, read=self._limits.image_read_seconds),
                headers={"User-Agent": "agent-env"},
            )
        return self._client


class _Partial:
    """A download that may have begun earlier, hashed as it grows."""

    def __init__(self, path: Path, descriptor: Descriptor, told: Callable[[int], None]) -> None:
        self._path = path
        self._wanted = descriptor
        self._told = told
        self._file = path.open("ab+")
        self._digest = hashlib.new(descriptor.digest.partition(":")[0])
        self.size = -1

    def reopen(self) -> None:
        """Reads what an earlier attempt has left; later attempts go on as they are."""
        if self.size < 0:
            self.size = 0
            self._file.seek(0)
            while chunk := self._file.read(MIB):
                self._digest.update(chunk)
                self.size += len(chunk)
            if self.size > self._wanted.size:
                self.restart()
            self._told(self.size)

    def restart(self) -> None:
        """From the first byte."""
        self._file.truncate(0)
        self._digest = hashlib.new(self._wanted.digest.partition(":")[0])
        self.size = 0

    def add(self, chunk: bytes) -> None:
        """The next bytes."""
        self.size += len(chunk)
        if self.size > self._wanted.size:
            self.restart()
            raise TransferError(f"more than the {self._wanted.size} bytes of {self._wanted.digest} came", concerns=str(self._path))
        self._file.write(chunk)
        self._digest.update(chunk)
        self._told(self.size)

    def verify(self, name: str) -> None:
        """All of it, and nothing else."""
        self._file.flush()
        if self.size < self._wanted.size:
            raise _AgainError(f"{name} broke off after {self.size} of {self._wanted.size} bytes", concerns=self._wanted.digest)
        if f"{self._digest.name}:{self._digest.hexdigest()}" != self._wanted.digest:
            self.restart()
            raise _AgainError(f"{name} sent something else than {self._wanted.digest}", concerns=self._wanted.digest)

    def close(self) -> None:
        """Lets go of the file."""
        self._file.close()


def _is_content_of(data: bytes, digest: str) -> bool:
    algorithm, _, wanted = digest.partition(":")
    return hashlib.new(algorithm, data).hexdigest() == wanted


def _said(error: Exception) -> str:
    return str(error) or type(error).__name__
