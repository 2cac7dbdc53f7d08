"""The wire, as values: what servers, gateways and clients send each other, and the pure rules that all of them follow.

It imports pydantic and the standard library alone, so that the framework and the gateway can use it at no cost.
"""

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
