"""Images: named, built, pulled, pushed, pinned, and unpacked without any engine.

Builds and pulls go through the container engine (`Images`). `ImageStore` needs none: it takes an image from a registry, an OCI layout, a
`docker save` archive or an engine, and keeps its layers unpacked, each content once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent_env.lazy import names_of

if TYPE_CHECKING:
    from agent_env.images.building import BuildRequest as BuildRequest
    from agent_env.images.context import BuildContext as BuildContext
    from agent_env.images.credentials import Credentials as Credentials
    from agent_env.images.credentials import DockerKeyring as DockerKeyring
    from agent_env.images.credentials import Keyring as Keyring
    from agent_env.images.credentials import KnownKeyring as KnownKeyring
    from agent_env.images.held import HeldImage as HeldImage
    from agent_env.images.images import Images as Images
    from agent_env.images.oci.store import ImageStore as ImageStore
    from agent_env.images.oci.store import UnpackedImage as UnpackedImage
    from agent_env.images.platforms import Platform as Platform
    from agent_env.images.platforms import normalize_platform as normalize_platform
    from agent_env.images.progress import OnProgress as OnProgress
    from agent_env.images.progress import Progress as Progress
    from agent_env.images.progress import Stage as Stage
    from agent_env.images.reference import ImageReference as ImageReference
    from agent_env.images.reference import context_name as context_name
    from agent_env.images.saved import SavedImage as SavedImage
    from agent_env.images.wheelhouse import Wheelhouse as Wheelhouse

__getattr__, __dir__ = names_of(
    __name__,
    {
        "building": ["BuildRequest"],
        "context": ["BuildContext"],
        "credentials": ["Credentials", "DockerKeyring", "Keyring", "KnownKeyring"],
        "held": ["HeldImage"],
        "images": ["Images"],
        "oci.store": ["ImageStore", "UnpackedImage"],
        "platforms": ["Platform", "normalize_platform"],
        "progress": ["OnProgress", "Progress", "Stage"],
        "reference": ["ImageReference", "context_name"],
        "saved": ["SavedImage"],
        "wheelhouse": ["Wheelhouse"],
    },
)
