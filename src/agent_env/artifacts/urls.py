"""What a URL is saved as, and which URLs may be fetched: pure rules, the reference's."""

from __future__ import annotations

import contextlib
import ipaddress
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

from agent_env.documents.network import NetworkMode, NetworkPolicy
from agent_env.documents.reading import at
from agent_env.documents.spelling import unknown_key_problems
from agent_env.errors import Problem, ProblemsError
from agent_env.keeper.policy import host_rule
from agent_env.stores.secrets import is_reference

FALLBACK_NAME = "downloaded"
_ENTRY_KEYS = frozenset({"url", "filename"})


@dataclass(frozen=True, slots=True)
class NamedUrl:
    """A URL and the plain file name that it is saved under."""

    url: str
    filename: str

    @property
    def shown(self) -> str:
        """The URL for messages: without user, password, query and fragment, which may be secrets."""
        return shown_url(self.url)


def shown_url(url: str) -> str:
    """A URL without user, password, query and fragment."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", f":{parts.port}" if parts.port else ""
    except ValueError:
        return "(malformed URL)"
    host = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{host}{port}{parts.path}"


def name_urls(entries: Any, *, source: str | None = None, path: str = "$.urls") -> list[NamedUrl]:
    """Names each URL's file.

    A bare URL is saved under the last segment of its decoded path, `downloaded` if there is none; repeats get `-1`, `-2` before the
    extension. `{"url", "filename"}` names the file itself, is never renamed, and a bare URL must not want the same name. What is still a
    reference to a secret (`env:NAME`, `secret:KEY`) has neither URL nor name yet, and is passed over.

    Raises:
        ProblemsError: All entries that break a rule.
    """
    if not isinstance(entries, list | tuple):
        raise ProblemsError([Problem("urls is a list", source, path)])
    problems: list[Problem] = []
    explicit: dict[str, int] = {}
    for i, entry in enumerate(entries):
        where = at(path, i)
        if isinstance(entry, dict):
            problems += _explicit_problems(entry, explicit, i, source, where)
        elif not isinstance(entry, str):
            problems.append(Problem('an entry is a URL or {"url": …, "filename": …}', source, where))
        else:
            problems += url_problems(entry, source, where)
    if not problems:
        named, problems = _named(entries, explicit, source, path)
        if not problems:
            return named
    raise ProblemsError(problems)


def _explicit_problems(entry: dict[str, Any], seen: dict[str, int], i: int, source: str | None, path: str) -> Iterator[Problem]:
    yield from unknown_key_problems(entry, _ENTRY_KEYS, source=source, path=path, strict=True)[0]
    url, filename = entry.get("url"), entry.get("filename")
    if isinstance(url, str):
        yield from url_problems(url, source, at(path, "url"))
    else:
        yield Problem("url is missing" if url is None else "url is text", source, path)
    if filename is None:
        return
    where = at(path, "filename")
    if not isinstance(filename, str):
        yield Problem("filename is text", source, where)
    elif plain_name_problem(filename):
        yield Problem(f"filename {filename!r} {plain_name_problem(filename)}", source, where, "a plain name, without folders")
    elif filename in seen:
        yield Problem(f"filename {filename!r} is given twice", source, where, f"also by entry {seen[filename]}")
    else:
        seen[filename] = i


def _named(entries: Sequence[Any], explicit: dict[str, int], source: str | None, path: str) -> tuple[list[NamedUrl], list[Problem]]:
    named: list[NamedUrl] = []
    problems: list[Problem] = []
    taken = set(explicit)
    for i, entry in enumerate(entries):
        url, filename = (entry["url"], entry.get("filename")) if isinstance(entry, dict) else (entry, None)
        if is_reference(url):
            continue
        if filename is None:
            wanted = bare_name(url)
            if wanted in explicit:
                hint = "give this URL a filename of its own"
                problems.append(
                    Problem(f"would be saved as {wanted!r}, which entry {explicit[wanted]} asks for", source, at(path, i), hint)
                )
                continue
            filename = _free(wanted, taken)
            taken.add(filename)
        named.append(NamedUrl(url, filename))
    return named, problems


def bare_name(url: str) -> str:
    """The last segment of the decoded path, or `downloaded`."""
    name = unquote(urlsplit(url).path, errors="replace").rsplit("/", 1)[-1]
    return FALLBACK_NAME if plain_name_problem(name) else name


def plain_name_problem(name: str) -> str | None:
    """Why a text can't be a plain file name, or None."""
    if name in {"", ".", ".."}:
        return "names no file"
    if "/" in name or any(ord(character) < 32 or ord(character) == 127 for character in name):
        return "holds a slash or control character"
    try:
        return "is longer than 255 bytes" if len(name.encode()) > 255 else None
    except UnicodeEncodeError:
        return "holds half of a surrogate pair"


def _free(name: str, taken: set[str]) -> str:
    stem, dot, extension = name.rpartition(".")
    if not stem:
        stem, dot, extension = name, "", ""
    candidate, number = name, 0
    while candidate in taken:
        number += 1
        candidate = f"{stem}-{number}{dot}{extension}"
    return candidate


def url_problems(url: str, source: str | None, path: str) -> Iterator[Problem]:
    """Why a URL can't be fetched: it is not HTTP(S), has no host, or is malformed. Of a reference, nobody knows yet."""
    if is_reference(url):
        return
    try:
        parts: SplitResult = urlsplit(url)
        port_is_bad = parts.port == 0
    except ValueError:
        yield Problem("is a malformed URL", source, path)
        return
    if parts.scheme.lower() not in {"http", "https"}:
        yield Problem(f"has the scheme {parts.scheme or '(none)'!r}", source, path, "http and https can be fetched")
    elif not parts.hostname or port_is_bad or any(character.isspace() for character in url):
        yield Problem("is a malformed URL", source, path)


def admission_problem(host: str, addresses: Sequence[str], policy: NetworkPolicy | None, *, machine: bool) -> str | None:
    """Why a host must not be contacted on behalf of a sandbox, or None.

    Args:
        host: The host as the URL has it.
        addresses: What its name resolves to.
        policy: The sandbox's egress policy; None allows all.
        machine: This machine's own addresses and the link-local ones (where clouds serve credentials) are allowed too.
    """
    if policy is not None and policy.mode is NetworkMode.NONE:
        return "the sandbox has no network"
    parsed = [ipaddress.ip_address(address.partition("%")[0]) for address in addresses]
    if not machine and any(_is_own(address) for address in parsed):
        return "it is an address of this machine or its link"
    if policy is None or policy.mode is not NetworkMode.ALLOWLIST or _host_listed(host, policy.allow_hosts):
        return None
    networks = [ipaddress.ip_network(cidr, strict=False) for cidr in policy.allow_cidrs]
    if parsed and all(any(address.version == net.version and address in net for net in networks) for address in parsed):
        return None
    return "the sandbox's allow-list does not name it"


def _is_own(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    address = mapped or address
    return address.is_loopback or address.is_link_local or address.is_unspecified or address.is_multicast


def _host_listed(host: str, patterns: Sequence[str]) -> bool:
    host = host.rstrip(".").lower()
    for pattern in patterns:
        with contextlib.suppress(ValueError):  # a provider that holds the list has refused such an entry
            if host_rule(pattern).names(host):
                return True
    return False
