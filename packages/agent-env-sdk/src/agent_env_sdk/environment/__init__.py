"""The environment side of the SDK: a server as a class.

from agent_env_sdk.environment import Environment, environment, tool

@environment(name="greeter")
class Greeter(Environment):
    @tool()
    def greet(self, name: str) -> str:
        "Greets someone."
        return f"hello {name}"

Greeter().serve()
"""

from agent_env_sdk.wire import (
    AgentEnvError,
    DataPart,
    FileBytes,
    FilePart,
    FileUri,
    IntakeDeclaration,
    IntakeFormat,
    TextPart,
    WriteNamespaceGrant,
)

from .answers import Audio, Image, ToolResult
from .application import asgi
from .author import Environment
from .context import Caller, LoadContext, ToolContext, bound
from .marks import add_data, environment, extension, get_data, reset_data, tool
from .seeds import atomic, chunks, load_bytes, load_json, read_bytes, read_json
from .serving import serve
from .surface import AssemblyError
from .transfers import NamespaceUploader, TransferError, download, give, upload

__all__ = [
    "AgentEnvError",
    "AssemblyError",
    "Audio",
    "Caller",
    "DataPart",
    "Environment",
    "FileBytes",
    "FilePart",
    "FileUri",
    "Image",
    "IntakeDeclaration",
    "IntakeFormat",
    "LoadContext",
    "NamespaceUploader",
    "TextPart",
    "ToolContext",
    "ToolResult",
    "TransferError",
    "WriteNamespaceGrant",
    "add_data",
    "asgi",
    "atomic",
    "bound",
    "chunks",
    "download",
    "environment",
    "extension",
    "get_data",
    "give",
    "load_bytes",
    "load_json",
    "read_bytes",
    "read_json",
    "reset_data",
    "serve",
    "tool",
    "upload",
]
