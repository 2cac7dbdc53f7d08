"""What an image says of itself, asked before a sandbox is made of it, for providers that can tell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from agent_env.images.oci.manifests import ImageConfig
    from agent_env.images.progress import OnProgress


@runtime_checkable
class ReadsImages(Protocol):
    """A provider whose sandboxes are made of images that it has on this machine."""

    async def image_config(self, name: str, tell: OnProgress) -> ImageConfig:
        """The image's configuration: its labels, the ports that it exposes. The image is fetched where it is not here.

        Args:
            name: As a step names it.
            tell: Told how far it is.

        Raises:
            AgentEnvError: It can't be had; the sandbox's own making says so again.
        """
        ...
