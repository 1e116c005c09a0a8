"""Finds lost peers in the logs of a run, which can recover from a loss and end well, only later."""

from __future__ import annotations

from pathlib import Path

from psfleet.service.logs import parse_line


def lost_peers(out: Path) -> dict[str, list[str]]:
    """By log, the messages of a run's processes about lost peers; empty if there are none."""
    lost: dict[str, list[str]] = {}
    for path in sorted((out / "logs").glob("*.log")):
        entries = filter(None, map(parse_line, path.read_bytes().splitlines()))
        messages = [entry["message"] for entry in entries if entry.get("event") == "lost_peer"]
        if messages:
            lost[path.name] = messages
    return lost
