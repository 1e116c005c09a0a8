"""Rows of tables of tests, of which `make test` runs the first ones and `make test-all` all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def first_rows(rows: Iterable[Any], count: int = 1) -> list[Any]:
    """Rows for `pytest.mark.parametrize`; those after the first ones are marked `extended`.

    Args:
        rows: One for each test; a tuple has the values of several arguments.
        count: Number of rows that `make test` runs: they differ in what the test is about.
    """
    listed = list(rows)
    marked = (
        pytest.param(*(row if isinstance(row, tuple) else (row,)), marks=pytest.mark.extended) for row in listed[count:]
    )
    return [*listed[:count], *marked]
