"""A fleet in this process for the tests of clients."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest
from support.in_process_fleet import InProcessFleet, in_process_fleet

from psfleet.tf.client import Fleet


@pytest.fixture(scope="package")
def standing() -> Iterator[InProcessFleet]:
    """Two ps and a worker."""
    with in_process_fleet() as fleet:
        yield fleet


@pytest.fixture
def fleet(standing: InProcessFleet) -> Iterator[Fleet]:
    """A client."""
    with standing.client() as client:
        yield client


@pytest.fixture
def other(standing: InProcessFleet) -> Iterator[Fleet]:
    """Another client."""
    with standing.client() as client:
        yield client


@pytest.fixture
def name() -> str:
    """A container that no other test uses; issue 13 has such a name, with an underscore."""
    return f"problem_{secrets.token_hex(4)}"
