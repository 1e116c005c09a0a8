"""Where the certificates of a run lie on the machine that starts it."""

from __future__ import annotations

from pathlib import Path


def certificates_folder(name: str) -> Path:
    """Of the job of a name: in the user's own folder, since the job file's is mounted by every worker."""
    return Path.home() / ".psfleet" / "certs" / name
