"""What holds for each unit test."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

PROGRAM_MODULES = ("program", "helper")


@pytest.fixture(autouse=True)
def no_module_of_a_training_program_remains() -> Iterator[None]:
    """A process imports the modules of one program; a test process imports those of many, of the same names."""
    path = list(sys.path)
    yield
    sys.path[:] = path
    for name in PROGRAM_MODULES:
        sys.modules.pop(name, None)
