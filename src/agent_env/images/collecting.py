"""What any collection of an installation may remove of its images: what it built or unpacked itself, above the budgets of bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agent_env.images.opening import open_images

if TYPE_CHECKING:
    from agent_env.config import Config


@dataclass(frozen=True, slots=True)
class FreedImages:
    """What was removed, or would be."""

    built: tuple[str, ...] = ()
    """Names of images in the engine; ids of those without a name."""
    layers: int = 0
    """Intermediate images of failed and removed builds."""
    unpacked: tuple[str, ...] = ()
    """Unpacked images, by where they came from."""
    bytes: int = 0
    """Freed, as far as it is known."""

    def __bool__(self) -> bool:
        return bool(self.built or self.layers or self.unpacked or self.bytes)

    def to_json(self) -> dict[str, Any]:
        """As data."""
        return {"built": [*self.built], "layers": self.layers, "unpacked": [*self.unpacked], "bytes": self.bytes}


async def collect_images(config: Config, *, dry_run: bool = False) -> FreedImages:
    """Removes layers of failed builds, and the least recently used of our images above `image_budget_bytes` and `image_layers_bytes`.

    What a container, a sandbox, a build or somebody else's name needs stays, and so does what was used just now.

    Args:
        config: The installation.
        dry_run: Only says what would go.

    Raises:
        InfrastructureError: The engine can't be reached any more, or something can't be removed.
    """
    async with open_images(config) as opened:
        built, layers, size = list[str](), 0, 0
        if opened.images is not None:
            done = await (await opened.images.space()).gc(dry_run=dry_run)
            built = [row.image.names[0] if row.image.names else row.image.id for row in done.removed]
            layers, size = len(done.intermediate), sum(row.unique_bytes for row in done.removed)
        freed = await opened.store.gc(dry_run=dry_run)
        return FreedImages(tuple(built), layers, tuple(record.location for record in freed.removed), size + freed.bytes)
