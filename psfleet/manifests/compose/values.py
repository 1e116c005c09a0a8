"""Values of a compose file: texts in which compose looks for no variable, and mounts."""

from __future__ import annotations

from typing import Any


def plain(text: str) -> str:
    """Escapes `$`, with which compose begins a variable."""
    return text.replace("$", "$$")


def bind(source: str, target: str) -> dict[str, Any]:
    """A read-only mount of a path that must exist."""
    return {
        "type": "bind",
        "source": source,
        "target": target,
        "read_only": True,
        "bind": {"create_host_path": False},
    }
