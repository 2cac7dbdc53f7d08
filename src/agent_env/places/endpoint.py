"""Addresses carry a viewpoint: a URL exists only as an endpoint seen from somewhere. No other module edits URLs."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from urllib.parse import urlsplit, urlunsplit

LOOPBACK = "127.0.0.1"


class View(StrEnum):
    """From where a service is looked at."""

    PROCESS = "process"
    """This process, on the user's machine."""
    MACHINE = "machine"
    """The machine that publishes the service (or plays it)."""
    INSIDE = "inside"
    """The place that serves it."""
    SIBLING = "sibling"
    """Another container on the same network."""


@dataclass(frozen=True, slots=True)
class Published:
    """How a sandbox shows its ports to the outside."""

    tunnels: Mapping[int, str] = field(default_factory=dict)
    """Served port → base URL as this process reaches it."""
    host_ports: Mapping[int, int] = field(default_factory=dict)
    """Served port → port on the machine that publishes; the same number where absent."""
    addresses: Sequence[str] = ()
    """Addresses that the machine publishes on; none means every one of them, so loopback serves."""

    def machine_address(self) -> str:
        """Where a process on the machine connects to: loopback unless the ports are published only elsewhere."""
        usable = [address for address in self.addresses if address]
        if not usable or any(_is_loopback(address) for address in usable):
            return LOOPBACK
        return bracketed(usable[0])

    def on_machine(self, url: str) -> str:
        """A URL that this process uses, as a process on the machine reaches the same service.

        A URL equal to a tunnel, or under it, becomes `http://<address>:<published port><rest>`. The longest tunnel is tried
        first; path, query and fragment are kept; any other URL comes back unchanged.
        """
        for port, tunnel in sorted(self.tunnels.items(), key=lambda item: -len(item[1].rstrip("/"))):
            rest = _below(url, tunnel)
            if rest is not None:
                return f"http://{self.machine_address()}:{self.host_ports.get(port, port)}{rest}"
        return url


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A service: which port it listens on inside its place, under which path."""

    port: int
    path: str = ""
    scheme: str = "http"
    published: Published = field(default_factory=Published)
    sibling_name: str | None = None
    """Its name on a network that it shares with other containers."""

    def seen_from(self, view: View) -> str:
        """The URL that reaches the service from there.

        Raises:
            LookupError: It can't be reached from there (not published, no shared network).
        """
        match view:
            case View.INSIDE:
                return f"{self.scheme}://{LOOPBACK}:{self.port}{self.path}"
            case View.SIBLING:
                if self.sibling_name is None:
                    raise LookupError(f"port {self.port} has no name on a shared network")
                return f"{self.scheme}://{bracketed(self.sibling_name)}:{self.port}{self.path}"
            case View.MACHINE:
                port = self.published.host_ports.get(self.port, self.port)
                return f"{self.scheme}://{self.published.machine_address()}:{port}{self.path}"
            case View.PROCESS:
                if self.port not in self.published.tunnels:
                    raise LookupError(f"port {self.port} is not published")
                return f"{self.published.tunnels[self.port].rstrip('/')}{self.path}"


def bracketed(address: str) -> str:
    """An address as it stands in a URL: IPv6 in brackets, everything else as it is."""
    return f"[{address}]" if ":" in address and not address.startswith("[") else address


def with_host(url: str, host: str) -> str:
    """The same URL on another host; user info, port, path, query and fragment are kept."""
    parts = urlsplit(url)
    user = f"{parts.netloc.rpartition('@')[0]}@" if "@" in parts.netloc else ""
    port = f":{parts.port}" if parts.port is not None else ""
    return urlunsplit(parts._replace(netloc=f"{user}{bracketed(host)}{port}"))


def is_local(url: str) -> bool:
    """Whether the URL's host is this machine itself as seen from it: loopback or the unspecified address."""
    host = urlsplit(url).hostname or ""
    return host == "localhost" or _is_loopback(host) or host in {"0.0.0.0", "::"}


def _below(url: str, base: str) -> str | None:
    base = base.rstrip("/")
    if url == base:
        return ""
    if url.startswith(base) and url[len(base)] in "/?#":
        return url[len(base) :]
    return None


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address.strip("[]")).is_loopback
    except ValueError:
        return address == "localhost"
