"""Sandboxes: the contract of their providers, and the providers. Each provider is loaded when it is asked for."""

from typing import TYPE_CHECKING

from agent_env.lazy import names_of

if TYPE_CHECKING:
    from agent_env.sandboxes.contract import Capabilities, Level, Provider, Sandbox, SandboxInfo, SandboxSpec
    from agent_env.sandboxes.registry import names, provider

__all__ = ["Capabilities", "Level", "Provider", "Sandbox", "SandboxInfo", "SandboxSpec", "names", "provider"]

__getattr__, __dir__ = names_of(
    __name__,
    {
        "contract": ["Capabilities", "Level", "Provider", "Sandbox", "SandboxInfo", "SandboxSpec"],
        "registry": ["names", "provider"],
    },
)
