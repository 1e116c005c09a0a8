"""Numbers of things in messages."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """A number of things: 1 worker, 2 workers."""
    return f"{number} {noun}" + ("" if number == 1 else "s")
