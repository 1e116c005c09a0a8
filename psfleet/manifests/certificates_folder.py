"""The folder of a job's certificates on the machine that starts the fleet."""

from __future__ import annotations

from pathlib import Path


def certificates_folder(name: str) -> Path:
    """`~/.psfleet/certs/NAME`: not beside the job file, because workers mount that folder, and it has the CA's key."""
    return Path.home() / ".psfleet" / "certs" / name
