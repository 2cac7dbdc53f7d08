"""What tests of other systems than Linux use."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance.boxes import box_image, python_image
from tests.portability.mac import Mac

__all__ = ["box_image", "python_image"]


@pytest.fixture
def mac(tmp_path: Path) -> Mac:
    """A Mac without a container engine."""
    return Mac(tmp_path)
