"""The agent side of the SDK: a class with one `run`; card, A2A (0.3 and 1.x), tasks, extensions and their persistence are made for it.

@agent("echo", description="Says it again.")
class Echo(Agent):
    async def run(self, request):
        return TaskResult.said(request.text)

serve(Echo())
"""

from agent_env_sdk.wire.a2a import Usage
from agent_env_sdk.wire.agent_bodies import Peer
from agent_env_sdk.wire.parts import DataPart, FileBytes, FilePart, FileUri, TextPart
from agent_env_sdk.wire.trajectory import ErrorEvent, MessageEvent, ReasoningEvent, ToolCallEvent, ToolResultEvent, UsageEvent

from .application import asgi
from .author import Agent, AssemblyError, agent
from .serving import serve
from .turns import AgentConfig, McpServer, Progress, Skill, TaskError, TaskRequest, TaskResult, WriteOnly

__all__ = [
    "Agent",
    "AgentConfig",
    "AssemblyError",
    "DataPart",
    "ErrorEvent",
    "FileBytes",
    "FilePart",
    "FileUri",
    "McpServer",
    "MessageEvent",
    "Peer",
    "Progress",
    "ReasoningEvent",
    "Skill",
    "TaskError",
    "TaskRequest",
    "TaskResult",
    "TextPart",
    "ToolCallEvent",
    "ToolResultEvent",
    "Usage",
    "UsageEvent",
    "WriteOnly",
    "agent",
    "asgi",
    "serve",
]
