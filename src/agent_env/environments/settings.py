"""What a user's configuration says of environments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from agent_env.defaults import ENVIRONMENT_BASE_IMAGE, ENVIRONMENT_DATABASE_IMAGE

BASE_IMAGE_KEY = "envs.base_image"
DATABASE_IMAGE_KEY = "envs.database_image"


@dataclass(frozen=True, slots=True)
class EnvironmentSettings:
    """Images that we choose where no document does, and the documents that the reference looks for by name."""

    base_image: str = ENVIRONMENT_BASE_IMAGE
    """What the gateway's image is built upon."""
    database_image: str = ENVIRONMENT_DATABASE_IMAGE
    gateway_env_id: str = "default"
    database_env_id: str = "default-db"
    browser_env_id: str = "website-browser"

    @classmethod
    def of(cls, get: Callable[[str], Any]) -> EnvironmentSettings:
        """Those of a configuration.

        Args:
            get: Dotted key → value, None where it is not set.
        """
        plain = cls()
        return cls(
            base_image=get(BASE_IMAGE_KEY) or plain.base_image,
            database_image=get(DATABASE_IMAGE_KEY) or plain.database_image,
        )
