"""Paths of this machine that a compose service sees."""

from __future__ import annotations

from typing import Any


def bind(source: str, target: str) -> dict[str, Any]:
    """A path that must be there, mounted read only."""
    return {
        "type": "bind",
        "source": source,
        "target": target,
        "read_only": True,
        "bind": {"create_host_path": False},
    }
