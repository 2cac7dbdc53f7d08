"""Testing an environment the way that it will be used: over real HTTP, in this process or in its image.

async with serve_here(Greeter()) as greeter:
    assert (await greeter.call("greet", {"name": "Ada"})).text == "hello Ada"
"""

from agent_env_sdk.mcp_session import CallResult, McpError, McpSession

from .client import Client
from .here import serve_here
from .image import ImageError, serve_image

__all__ = ["CallResult", "Client", "ImageError", "McpError", "McpSession", "serve_here", "serve_image"]
