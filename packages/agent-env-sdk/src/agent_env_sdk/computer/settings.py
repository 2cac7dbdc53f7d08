"""What a deployment sets on a computer, as one JSON value in `AGENTENV_COMPUTER_SETTINGS`."""

from __future__ import annotations

import os
from typing import Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agent_env_sdk.wire.grants import RelativePath

from .frames import Space

SETTINGS_VARIABLE: Final = "AGENTENV_COMPUTER_SETTINGS"


class Settings(BaseModel):
    """Defaults that extensions may change, and what `data/get` gives."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    data_paths: list[RelativePath] = Field(default_factory=list)
    """Below the session user's home."""
    default_space: Space = "frame"
    default_norm_scale: int = Field(default=1000, ge=1, le=1_000_000)
    queue_wait_s: float = Field(default=30.0, gt=0, le=3600)
    """How long an input waits for its turn."""
    tap_hold_ms: int = Field(default=50, ge=0, le=1000)
    type_delay_ms: int = Field(default=10, ge=0, le=1000)
    max_hold_ms: int = Field(default=10_000, ge=0, le=600_000)
    layout: str = "us"
    drag_duration_ms: int = Field(default=500, ge=0)
    exec_output_bytes: int = Field(default=1024 * 1024, gt=0)
    exec_timeout_s: float = Field(default=60.0, gt=0, le=3600)

    @classmethod
    def from_environment(cls) -> Settings:
        """What the variable says, or the defaults.

        Raises:
            ValueError: It isn't JSON, or says what isn't a setting.
        """
        text = os.environ.get(SETTINGS_VARIABLE)
        try:
            return cls.model_validate_json(text) if text else cls()
        except ValidationError as error:
            raise ValueError(f"{SETTINGS_VARIABLE} holds no settings of a computer: {error}") from None
