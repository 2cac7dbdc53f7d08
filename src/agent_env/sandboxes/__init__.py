"""Sandboxes: the contract of their providers, and the providers. Each provider is loaded when it is asked for."""

from agent_env.sandboxes.contract import Capabilities, Level, Provider, Sandbox, SandboxInfo, SandboxSpec
from agent_env.sandboxes.registry import names, provider

__all__ = ["Capabilities", "Level", "Provider", "Sandbox", "SandboxInfo", "SandboxSpec", "names", "provider"]
