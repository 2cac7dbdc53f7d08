"""The wire, as values: what servers, gateways and clients send each other, and the pure rules that all of them follow.

It imports pydantic and the standard library alone, so that the framework and the gateway can use it at no cost.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .access import ToolAccess
    from .card import Capabilities, EnvironmentCard, Extension, ExtensionMethod, Interface, Tool
    from .clock import ClockError, VirtualClock
    from .errors import AgentEnvError, Applied, error_body
    from .grants import HttpGetGrant, HttpPostPolicyGrant, HttpPutGrant, ReadObject, Uploaded, WriteNamespaceGrant, WriteObject
    from .intake import IntakeDeclaration, IntakeFormat, misfits
    from .parts import DataPart, FileBytes, FilePart, FileUri, Part, TextPart, dump_parts, parts_adapter, uploaded_part, uploaded_path
    from .rpc import RpcError

__all__ = [
    "AgentEnvError",
    "Applied",
    "Capabilities",
    "ClockError",
    "DataPart",
    "EnvironmentCard",
    "Extension",
    "ExtensionMethod",
    "FileBytes",
    "FilePart",
    "FileUri",
    "HttpGetGrant",
    "HttpPostPolicyGrant",
    "HttpPutGrant",
    "IntakeDeclaration",
    "IntakeFormat",
    "Interface",
    "Part",
    "ReadObject",
    "RpcError",
    "TextPart",
    "Tool",
    "ToolAccess",
    "Uploaded",
    "VirtualClock",
    "WriteNamespaceGrant",
    "WriteObject",
    "dump_parts",
    "error_body",
    "misfits",
    "parts_adapter",
    "uploaded_part",
    "uploaded_path",
]

_HOMES = {
    "ToolAccess": "access",
    "Capabilities": "card",
    "EnvironmentCard": "card",
    "Extension": "card",
    "ExtensionMethod": "card",
    "Interface": "card",
    "Tool": "card",
    "ClockError": "clock",
    "VirtualClock": "clock",
    "AgentEnvError": "errors",
    "Applied": "errors",
    "error_body": "errors",
    "HttpGetGrant": "grants",
    "HttpPostPolicyGrant": "grants",
    "HttpPutGrant": "grants",
    "ReadObject": "grants",
    "Uploaded": "grants",
    "WriteNamespaceGrant": "grants",
    "WriteObject": "grants",
    "IntakeDeclaration": "intake",
    "IntakeFormat": "intake",
    "misfits": "intake",
    "DataPart": "parts",
    "FileBytes": "parts",
    "FilePart": "parts",
    "FileUri": "parts",
    "Part": "parts",
    "TextPart": "parts",
    "dump_parts": "parts",
    "parts_adapter": "parts",
    "uploaded_part": "parts",
    "uploaded_path": "parts",
    "RpcError": "rpc",
}


def __getattr__(name: str) -> Any:
    """Each name is imported when it is first asked for: a server's start takes what it uses, and no more."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
