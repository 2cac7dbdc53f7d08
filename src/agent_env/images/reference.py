"""Names of images: read, normalised, printed. Nothing here asks anybody."""

from __future__ import annotations

import hashlib
import ipaddress
import re
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from agent_env.errors import UserError
from agent_env.ids import LOCAL, is_local, key_segment
from agent_env.redaction import MASK
from agent_env.wording import quoted

DOCKER_HUB = "docker.io"
DEFAULT_TAG = "latest"
CONTEXT_ONLY = "local/"
"""What names of images that only exist as a build context begin with: they are in no registry."""

# The grammar of the distribution project's reference package.
_DOMAIN = re.compile(
    r"(?:\[[0-9A-Fa-f:]+\]|[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?(?:\.[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?)*)(?::[0-9]{1,5})?"
)
_PATH = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128}")
_ID = re.compile(r"(?:sha256:)?[0-9a-f]{64}")
_LONGEST_PATH = 255


@dataclass(frozen=True, slots=True)
class ImageReference:
    """A name of an image: `[registry/]path[:tag][@digest]`."""

    path: str
    registry: str | None = None
    """Host and port as they were written; None where the name has none."""
    tag: str | None = None
    digest: str | None = None

    @classmethod
    def parse(cls, text: str) -> ImageReference:
        """Reads a name.

        Raises:
            UserError: It is none, and why.
        """
        problem = reference_problem(text)
        if problem is not None:
            raise UserError(f"{shown_name(text)} is no image name: it {problem}", hint="write [host[:port]/]path[:tag][@sha256:…]")
        rest, _, digest = text.partition("@")
        head, colon, tail = rest.rpartition(":")
        tag = tail if colon and "/" not in tail else None
        name = head if tag is not None else rest
        first, slash, path = name.partition("/")
        if slash and _is_host(first):
            return cls(path, first, tag, digest or None)
        return cls(name, None, tag, digest or None)

    @property
    def name(self) -> str:
        """Registry and path, as written."""
        return f"{self.registry}/{self.path}" if self.registry else self.path

    @property
    def host(self) -> str:
        """The registry that serves it: Docker Hub for a name without one."""
        return self.registry or DOCKER_HUB

    @property
    def repository(self) -> str:
        """The path as the registry knows it: official images of Docker Hub live under `library/`."""
        return f"library/{self.path}" if self.host in HUB_NAMES and "/" not in self.path else self.path

    @property
    def version(self) -> str:
        """What is asked of a registry: the digest, else the tag, else `latest`."""
        return self.digest or self.tag or DEFAULT_TAG

    @property
    def pinned(self) -> bool:
        """It names one exact content."""
        return self.digest is not None

    @property
    def context_only(self) -> bool:
        """It names what is built from a stored context wherever it is needed, and is in no registry."""
        return self.registry is None and self.path.startswith(CONTEXT_ONLY)

    @property
    def on_this_machine(self) -> bool:
        """Its registry listens on this machine's loopback: others can't pull from it, and it speaks plain HTTP."""
        return self.registry is not None and is_loopback(self.registry)

    def normalised(self) -> ImageReference:
        """The same image with registry, full path and tag spelled out."""
        registry = DOCKER_HUB if self.host in HUB_NAMES else self.host.lower()
        return ImageReference(self.repository, registry, self.tag or (None if self.digest else DEFAULT_TAG), self.digest)

    def with_digest(self, digest: str | None) -> ImageReference:
        """The same name, pinned to a content."""
        return replace(self, digest=digest)

    def with_tag(self, tag: str) -> ImageReference:
        """The same name with another tag and no digest."""
        return replace(self, tag=tag, digest=None)

    def untagged(self) -> ImageReference:
        """Name and digest alone: engines refuse a tag beside a digest."""
        return replace(self, tag=None) if self.digest else self

    @property
    def tagged_name(self) -> str:
        """Name and tag without digest: what an engine keeps it under."""
        return f"{self.name}:{self.tag or DEFAULT_TAG}"

    def __str__(self) -> str:
        return self.name + (f":{self.tag}" if self.tag else "") + (f"@{self.digest}" if self.digest else "")


HUB_NAMES = frozenset({DOCKER_HUB, "index.docker.io", "registry-1.docker.io"})


def reference_problem(text: str) -> str | None:
    """Why a text is no image name, or None."""
    if not text or text != text.strip():
        return "is empty" if not text.strip() else "starts or ends with a space"
    rest, at, digest = text.partition("@")
    if at and "/" in digest:
        return "has a user or a password before its registry; they stand in the configuration (images.registries)"
    if at and not _DIGEST.fullmatch(digest):
        return f"has the digest {quoted(digest)}, which is not sha256:<64 hexadecimal digits>"
    head, colon, tail = rest.rpartition(":")
    tagged = bool(colon) and "/" not in tail
    if tagged and not _TAG.fullmatch(tail):
        return f"has the tag {quoted(tail)}, which is not 1 to 128 of A–Z a–z 0–9 _ . -"
    name = head if tagged else rest
    first, slash, path = name.partition("/")
    if slash and _is_host(first):
        if not _DOMAIN.fullmatch(first) or not _port_fits(first):
            return f"names the registry {quoted(first)}, which is no host[:port]"
        name = path
    if _ID.fullmatch(name):
        return "is an image id, not a name"
    if len(name) > _LONGEST_PATH:
        return f"is longer than {_LONGEST_PATH} characters"
    if not _PATH.fullmatch(name):
        return "has capital letters" if _PATH.fullmatch(name.lower()) else f"has the path {quoted(name)}, which registries don't take"
    return None


def shown_name(text: str) -> str:
    """What was given as an image name, as messages quote it: shortened, and without what may be a password before its registry."""
    _, at, after = text.rpartition("@")
    return quoted(f"{MASK}@{after}" if at and "/" in after else text)


def context_name(id: str, sources: str) -> ImageReference:
    """The name of an image that is stored as its build context: `local/<slug>-<hash>:<first 16 digits of the sources>`.

    A bare id and the local id of the same spelling share the repository; the tag is a digest of the content, so what they share is equal.

    Args:
        id: The image artifact's id.
        sources: The `source_digest` of its context.
    """
    return ImageReference(key_segment(id if is_local(id) else LOCAL + id), None, sources.removeprefix("sha256:")[:16])


def is_loopback(registry: str) -> bool:
    """A registry's `host[:port]` is this machine's own."""
    try:
        host = urlsplit(f"//{registry}").hostname or ""
        return host == "localhost" or host.endswith(".localhost") or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def digest_of(data: bytes) -> str:
    """`sha256:…` of a content."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def is_digest(text: str) -> bool:
    """It is `sha256:<64 hexadecimal digits>` (or sha512)."""
    return _DIGEST.fullmatch(text) is not None


def _is_host(first: str) -> bool:
    # The rule of every docker client: without a dot, a colon or capitals it is a folder of Docker Hub.
    return first == "localhost" or any(mark in first for mark in ".:[") or first.lower() != first


def _port_fits(domain: str) -> bool:
    _, colon, port = domain.rpartition(":")
    return not colon or domain.endswith("]") or 0 < int(port) <= 65535
