"""Values of a compose file: mounts, durations, and texts in which compose looks for no variable."""

from __future__ import annotations

from typing import Any

from psfleet.manifests.certificates_folder import certificates_folder
from psfleet.manifests.container import TLS


def bind(source: str, target: str) -> dict[str, Any]:
    """A read-only mount of a path that must exist."""
    return {
        "type": "bind",
        "source": source,
        "target": target,
        "read_only": True,
        "bind": {"create_host_path": False},
    }


def certificate_mount(name: str, role: str) -> dict[str, Any]:
    """The mount of the certificate of a role of a fleet; a container has only that folder, without the CA's key."""
    return bind(plain(str(certificates_folder(name) / role)), TLS)


def volume(name: str, target: str) -> dict[str, Any]:
    """A read-only mount of a volume of the file."""
    return {"type": "volume", "source": name, "target": target, "read_only": True}


def plain(text: str) -> str:
    """Escapes `$`, with which compose begins a variable."""
    return text.replace("$", "$$")


def duration(secs: float) -> str:
    """A duration without an exponent, which compose cannot parse."""
    return f"{secs:.6f}".rstrip("0").rstrip(".") + "s"
