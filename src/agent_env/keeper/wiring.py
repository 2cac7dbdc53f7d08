"""What a place is given so that its programs find the way out, and how the keeper shows a helper who it is.

A provider that makes a place of an allow-list: gives it no network, `proxy_environment()` among its variables, and `relay_token(…)` in its
helper's configuration (`HelperConfig`, `ContainerSpec`); once the helper listens it awaits `carry_egress` with `at_socket(…)` or
`in_container(…)`; it awaits that again when it attaches, holds a `Watch` with each handle, and awaits `drop` before it removes the place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from agent_env.places.endpoint import LOOPBACK
from agent_env.stores.installation import InstallationKey

if TYPE_CHECKING:
    from agent_env.documents.network import NetworkPolicy
    from agent_env.keeper.records import Egress

EGRESS_PORT = 61080
"""On the place's loopback. Above the ports that kernels hand out by themselves, and nobody's well-known one."""
_NOT_PROXIED = "localhost,127.0.0.1,::1"
_RELAY = "relay"


def proxy_environment(port: int = EGRESS_PORT) -> Mapping[str, str]:
    """The variables by which programs know a proxy, in both cases.

    `ALL_PROXY` is spelled as HTTP too: some clients refuse to start when it says SOCKS and they lack a package for that. The port takes
    SOCKS5 (`socks5h://`) all the same.
    """
    proxy = f"http://{LOOPBACK}:{port}"
    values = {"HTTP_PROXY": proxy, "HTTPS_PROXY": proxy, "ALL_PROXY": proxy, "NO_PROXY": _NOT_PROXIED}
    return values | {name.lower(): value for name, value in values.items()}


def egress_of(policy: NetworkPolicy, allow_private: Sequence[str] = ()) -> Egress:
    """The way out that holds an allow-list.

    Args:
        policy: Of mode `allowlist`, without `policy_problems`.
        allow_private: Ranges that the installation's configuration lets places reach although they are not public.
    """
    from agent_env.keeper.records import Egress

    return Egress(EGRESS_PORT, policy.allow_hosts, policy.allow_cidrs, tuple(allow_private))


def relay_token(state_root: Path, place: str) -> str:
    """What a helper lets relays in by, and nothing else: it allows connections to and from the place's loopback, no command and no file.

    It has no epoch: a change of the run's owner leaves relays alone, and an owner of an older epoch gains nothing by it.
    """
    return InstallationKey(state_root).derive(place, _RELAY)


def called_beside(sandbox_id: str, name: str) -> str:
    """What the keeper calls a container beside a machine: goes when its sandbox goes."""
    return f"{sandbox_id}.{name}"
