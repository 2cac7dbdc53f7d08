"""How a confined place reaches the outside, and what its own /etc says about that."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from agent_env.documents.network import NetworkMode
from agent_env.errors import UnsupportedError

if TYPE_CHECKING:
    from agent_env.sandboxes.confined.probe import Machine

NONE, KEEPER, SLIRP, MACHINE = "none", "keeper", "slirp4netns", "machine"
_RESOLVER = "10.0.2.3"
"""(slirp4netns) Where it answers questions for names."""


@dataclass(frozen=True, slots=True)
class Network:
    """How a place reaches the outside."""

    mode: str
    """`none`, `allowlist` or `allow_all`."""
    how: str
    """`none`, `keeper` (no network, and a proxy on loopback), `slirp4netns`, or `machine`: this machine's own network, shared."""

    @property
    def own_namespace(self) -> bool:
        """The place has interfaces of its own."""
        return self.how != MACHINE


def choose(mode: NetworkMode, option: str, machine: Machine) -> Network:
    """The network of a place with a policy of that mode.

    Args:
        mode: Of the policy in force.
        option: The provider's option `network`: `auto`, `slirp4netns` or `machine`.
        machine: What there is to make it with.

    Raises:
        UnsupportedError: The option demands what this machine has not.
    """
    if mode is not NetworkMode.ALLOW_ALL:
        return Network(mode.value, NONE if mode is NetworkMode.NONE else KEEPER)
    if option != MACHINE and machine.slirp is not None:
        return Network(mode.value, SLIRP)
    if option == SLIRP:
        raise UnsupportedError(f"slirp4netns is demanded by configuration: {machine.slirp_problem}", hint="apt install slirp4netns")
    return Network(mode.value, MACHINE)


def why_shared(option: str, machine: Machine) -> str:
    """Why places that may use the network share this machine's; empty where they don't."""
    if option != MACHINE and machine.slirp is not None:
        return ""
    return machine.slirp_problem or "by configuration"


def network_files(network: Network, sandbox_id: str) -> dict[str, str]:
    """What a place's own /etc says about its network: path → content."""
    name = sandbox_id[:64]
    return {
        "/etc/hostname": f"{name}\n",
        "/etc/hosts": f"127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n127.0.1.1 {name}\n",
        "/etc/resolv.conf": _resolver(network),
    }


def _resolver(network: Network) -> str:
    if network.how in {NONE, KEEPER}:
        return ""
    try:
        lines = Path("/etc/resolv.conf").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    if network.how == MACHINE:
        return "".join(f"{line}\n" for line in lines)
    kept = [line for line in lines if line.split()[:1] in (["search"], ["options"])]
    return "".join(f"{line}\n" for line in [f"nameserver {_RESOLVER}", *kept])
