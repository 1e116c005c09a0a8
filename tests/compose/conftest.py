"""What every test on a real Docker engine gets: the engine is there, and the images are those of this tree."""

from __future__ import annotations

import pytest
from support.images import build_images, require_engine


@pytest.fixture(scope="session", autouse=True)
def _images() -> None:
    """Both images, built once for all tests of a session."""
    require_engine()
    build_images()
