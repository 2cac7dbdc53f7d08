"""Which hosts, ports and addresses a place may reach. Pure: names are resolved elsewhere, and every address comes back here.

Two questions are asked of every connection: may this name be asked for (before it is resolved), and may this address be connected to
(after). A name that leads to an address that only this machine's own network has is refused, whatever the allow-list says: task files are
other people's, and must not open the network of whoever runs them. Only the installation's own configuration can (`allow_private`).
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

WEB_PORTS = frozenset({80, 443})
"""What an entry without a port means."""
ANY_PORT = "*"
_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_LONGEST_NAME = 253
_LOCALHOST = "localhost"
_LONGEST_SHOWN = 100

_REACHABLE_IPV6 = ipaddress.ip_network("2000::/3")
"""Everything else is this machine's, this site's, a group's, or IPv4 in disguise (mapped, compatible, NAT64)."""
_FORBIDDEN_WITHIN = {
    ipaddress.ip_network("::ffff:0:0/96"): "it carries an IPv4 address (mapped)",
    ipaddress.ip_network("64:ff9b::/96"): "it carries an IPv4 address (NAT64)",
    ipaddress.ip_network("64:ff9b:1::/48"): "it carries an IPv4 address (NAT64)",
    ipaddress.ip_network("2002::/16"): "it carries an IPv4 address (6to4)",
    ipaddress.ip_network("2001::/32"): "it carries an IPv4 address (Teredo)",
    ipaddress.ip_network("192.88.99.0/24"): "it is a relay of 6to4",
}


@dataclass(frozen=True, slots=True)
class HostRule:
    """One entry of the allow-list that names hosts."""

    name: str
    """In lower case, without a trailing dot; of a wildcard what stands behind `*.`."""
    wildcard: bool
    ports: frozenset[int] | None
    """None means every port."""

    def covers(self, host: str, port: int) -> bool:
        """Whether the entry allows it. A wildcard is for names below it, not for the name itself."""
        named = host.endswith(f".{self.name}") if self.wildcard else host == self.name
        return named and (self.ports is None or port in self.ports)

    def names(self, host: str) -> bool:
        """Whether it would, on some port."""
        return host.endswith(f".{self.name}") if self.wildcard else host == self.name


@dataclass(frozen=True, slots=True)
class Policy:
    """What one place may reach."""

    hosts: tuple[HostRule, ...] = ()
    networks: tuple[Network, ...] = ()
    """Ranges of the allow-list, for targets that are written as addresses. Every port."""
    allow_private: tuple[Network, ...] = ()
    """Ranges of the installation's own configuration that may be reached although they are not public."""

    @classmethod
    def parse(cls, hosts: Iterable[str], cidrs: Iterable[str], allow_private: Iterable[str] = ()) -> Policy:
        """Reads entries that `policy_problems` finds nothing wrong with.

        Raises:
            ValueError: An entry can't be read.
        """
        rules, networks = [], [ipaddress.ip_network(cidr, strict=False) for cidr in cidrs]
        for entry in hosts:
            rule = host_rule(entry)
            rules.append(rule)
        return cls(tuple(rules), tuple(networks), tuple(ipaddress.ip_network(cidr, strict=False) for cidr in allow_private))

    def target_problem(self, host: str, port: int) -> str | None:
        """Why a normal host (see `normal_host`) must not be asked for, or None. Nothing was resolved yet.

        A name that is not listed is not even resolved: the question alone could carry something out.
        """
        if any(rule.covers(host, port) for rule in self.hosts):
            return None
        address = literal(host)
        if address is not None and _within(address, self.networks):
            return None
        listed = next((rule for rule in self.hosts if rule.names(host)), None)
        if listed is not None and listed.ports is not None:
            allowed = ", ".join(map(str, sorted(listed.ports)))
            return f"port {port} is not on the allow-list of this sandbox's network policy, which has this host with port {allowed}"
        return "it is not on the allow-list of this sandbox's network policy"

    def address_problem(self, address: Address) -> str | None:
        """Why an address must not be connected to, or None."""
        if _within(address, self.allow_private):
            return None
        return not_public(address)


def not_public(address: Address) -> str | None:
    """Why an address is not one of the public internet, or None."""
    for network, why in _FORBIDDEN_WITHIN.items():
        if address.version == network.version and address in network:
            return why
    kinds: Mapping[str, bool] = {
        "it is this machine's loopback": address.is_loopback,
        "it is unspecified, which means this machine": address.is_unspecified,
        "it is link-local, where clouds serve credentials": address.is_link_local,
        "it is for groups (multicast)": address.is_multicast,
        "it is reserved": address.is_reserved,
        "it is private": not address.is_global,
    }
    found = next((why for why, holds in kinds.items() if holds), None)
    if isinstance(address, IPv6Address) and found is None and address not in _REACHABLE_IPV6:
        return "it is not of the public internet"
    return found


def normal_host(text: str) -> str | None:
    """A host as it is compared, resolved and connected to; None when it is none that can be named without doubt.

    Lower case, one trailing dot taken away, brackets of IPv6 taken away. Names are ASCII (`xn--…`), so that no look-alike and no mapping
    of characters comes between the check and the resolver. What a resolver would take for a number (`2130706433`, `0x7f.1`, `127.1`) is
    an address only in its one usual spelling.
    """
    if text.startswith("[") and text.endswith("]"):
        inner = text[1:-1]
        return _normal_address(inner) if ":" in inner else None
    if ":" in text:
        return _normal_address(text)
    host = text.lower().removesuffix(".")
    if not host or len(host) > _LONGEST_NAME or not text.isascii():
        return None
    labels = host.split(".")
    if _NUMBER.fullmatch(labels[-1]):
        return None if host != text.lower() else _normal_address(host)
    return host if all(_LABEL.fullmatch(label) for label in labels) else None


def _normal_address(text: str) -> str | None:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    return None if isinstance(address, IPv6Address) and address.scope_id else str(address)


def literal(host: str) -> Address | None:
    """The address that a normal host is; None for a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def shown_host(text: str) -> str:
    """A host as a message and a record may hold it: printable, short, in one line."""
    safe = "".join(character if character.isascii() and character.isprintable() and character != " " else "?" for character in text)
    return safe if len(safe) <= _LONGEST_SHOWN else f"{safe[:_LONGEST_SHOWN]}…"


def host_rule(entry: str) -> HostRule:
    """Reads `name`, `*.name`, an address, each with an optional `:port` or `:*`.

    Raises:
        ValueError: It can't be read; the message says why.
    """
    name, ports = _parted(entry)
    wildcard = name.startswith("*.")
    host = normal_host(name.removeprefix("*."))
    if host is None:
        raise ValueError(_why_no_host(name))
    if wildcard and literal(host) is not None:
        raise ValueError("has a wildcard before an address")
    return HostRule(host, wildcard, ports)


def _parted(entry: str) -> tuple[str, frozenset[int] | None]:
    head, colon, port = entry.rpartition(":")
    if "/" in entry:
        raise ValueError(_why_no_host(entry))
    if not colon or (":" in head and not head.endswith("]")):  # an IPv6 address without brackets has no port
        return entry, WEB_PORTS
    if port == ANY_PORT:
        return head, None
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise ValueError(f"has {port!r} for a port; a number from 1 to 65535, or * for every port")
    return head, frozenset({int(port)})


def _why_no_host(name: str) -> str:
    if "/" in name or "://" in name:
        return "is no host name; write the name alone, without scheme and path"
    if not name.isascii():
        return "has characters that are not ASCII; write the name as it is registered (xn--…)"
    if "*" in name:
        return "has a * that is not a leading `*.`"
    return "is no host name or address"


def policy_problems(hosts: Sequence[str], cidrs: Sequence[str]) -> Iterator[str]:
    """What is wrong with the entries of an allow-list."""
    for entry in hosts:
        try:
            host_rule(entry)
        except ValueError as error:
            yield f"the entry {shown_host(entry)!r} of allow_hosts {error}"
    yield from cidr_problems(cidrs, "allow_cidrs")


def private_entries(hosts: Sequence[str], cidrs: Sequence[str]) -> Iterator[tuple[str, int, str]]:
    """Entries of an allow-list that open nothing by themselves, because where they lead is not of the public internet.

    Returns:
        Field and index of each, and where it leads. What can't be read is left out; `policy_problems` has it.
    """
    for index, entry in enumerate(hosts):
        try:
            rule = host_rule(entry)
        except ValueError:
            continue
        address = literal(rule.name)
        local = "it is this machine's loopback" if rule.name == _LOCALHOST or rule.name.endswith(f".{_LOCALHOST}") else None
        why = local if address is None else not_public(address)
        if why is not None:
            yield "allow_hosts", index, why
    for index, entry in enumerate(cidrs):
        with suppress(ValueError):
            network = ipaddress.ip_network(entry, strict=False)
            first, last = not_public(network.network_address), not_public(network.broadcast_address)
            if first is not None and first == last:
                yield "allow_cidrs", index, first


def cidr_problems(cidrs: Sequence[str], where: str) -> Iterator[str]:
    """What is wrong with address ranges."""
    for entry in cidrs:
        try:
            ipaddress.ip_network(entry, strict=False)
        except ValueError:
            yield f"the entry {shown_host(entry)!r} of {where} is no address range such as 203.0.113.0/24"


def _within(address: Address, networks: Iterable[Network]) -> bool:
    return any(address.version == network.version and address in network for network in networks)
