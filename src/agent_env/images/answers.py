"""What an engine's or a registry's words mean. The only module that reads their message texts."""

from __future__ import annotations

import re
from dataclasses import dataclass

from agent_env.errors import (
    AgentEnvError,
    ImageNotFoundError,
    ImagePlatformError,
    ImageUnavailableError,
    InfrastructureError,
    StorageError,
)

LOGIN_HINT = "`docker login` to it, or put its user and password under [images.registries] of the configuration"

PATIENCE = 4
"""Doublings by which the pause is longer when a registry says that it is asked too often (reference: 10 s, then 30 s)."""


@dataclass(frozen=True, slots=True)
class Meaning:
    """What follows from an answer."""

    error: AgentEnvError
    again: bool
    """Asking again may help."""
    asked_too_often: bool = False
    unreachable: bool = False
    """Nobody answered, so nothing is known about the image."""


@dataclass(frozen=True, slots=True)
class _Rule:
    pattern: str
    error: type[AgentEnvError]
    message: str
    hint: str | None = None
    again: bool = False
    asked_too_often: bool = False
    unreachable: bool = False


_RULES = (
    _Rule(
        r"no matching manifest|does not match the specified platform|no image found in (?:manifest list|image index)",
        ImagePlatformError,
        "{image} is not made for this platform",
        "ask for a platform that it has, with --platform, or build it here",
    ),
    _Rule(
        r"toomanyrequests|too many requests|rate limit|\bHTTP 429\b",
        ImageUnavailableError,
        "{registry} limits how often it is asked",
        LOGIN_HINT,
        True,
        True,
        True,
    ),
    _Rule(
        r"no space left on device|disk quota exceeded", StorageError, "the disk is full", "`agent-env image gc --all` frees what is ours"
    ),
    _Rule(
        r"no basic auth|unauthorized|authentication required|incorrect username or password",
        ImageUnavailableError,
        "{registry} asks who is there",
        LOGIN_HINT,
    ),
    _Rule(
        r"pull access denied|manifest (?:for .* )?(?:unknown|not found)|manifest unknown|name unknown|not known to registry|no such image|"
        r"repository .* not found|: not found|image not known|not exist",
        ImageNotFoundError,
        "there is no image {image}",
        f"check its name and tag; if it is private, {LOGIN_HINT}",
    ),
    _Rule(r"denied|forbidden", ImageUnavailableError, "{registry} refuses {image}", LOGIN_HINT),
    _Rule(
        r"gave HTTP response to HTTPS client|x509|certificate|tls:",
        ImageUnavailableError,
        "{registry} can't be talked to safely",
        "only registries on this machine's loopback may speak plain HTTP; list others in the engine's insecure-registries",
        unreachable=True,
    ),
    _Rule(
        r"connection refused|no such host|server misbehaving|timeout|timed out|deadline exceeded|unreachable|connection reset|no route|"
        r"\bEOF\b|dial tcp|proxyconnect|bad gateway|HTTP (?:status: )?5\d\d|service unavailable|internal server error|temporary failure",
        ImageUnavailableError,
        "{registry} can't be reached for {image}",
        "check its name and this machine's network",
        again=True,
        unreachable=True,
    ),
)


def meaning(text: str, image: str, registry: str) -> Meaning:
    """What an answer about an image says.

    Args:
        text: The engine's or registry's words, which are kept in the message.
        image: The image that was asked for.
        registry: Who serves it.
    """
    said = " ".join(text.split())
    for rule in _RULES:
        if re.search(rule.pattern, text, re.IGNORECASE):
            message = f"{rule.message.format(image=image, registry=registry)}: {said}"
            error = rule.error(message, concerns=image, hint=rule.hint)
            return Meaning(error, rule.again, rule.asked_too_often, rule.unreachable)
    return Meaning(InfrastructureError(f"{image}: {said}", concerns=image), again=True)


_BUILD_HINTS = (
    (
        r"requires BuildKit|unknown flag: (?:mount|network|security|link|parents|exclude)",
        "engines build without BuildKit for programs: fetch files with ADD, or copy them in, and give secrets when the container starts",
    ),
    (
        r"unknown instruction: \S+",
        "one command has one line, or lines that end with \\; here-documents (<<EOF) need BuildKit: COPY a script",
    ),
    (
        r"excluded by \.dockerignore|not found in build context",
        "look for it in the folder, and in .dockerignore; a folder without files is no part of a build context",
    ),
)


def build_hint(text: str) -> str | None:
    """What to do about a failed build, where the engine's words tell."""
    return next((hint for pattern, hint in _BUILD_HINTS if re.search(pattern, text)), None)
