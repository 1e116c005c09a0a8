"""Puts files into a volume of a container that was created, for its user alone."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping
from pathlib import PurePosixPath

from docker.models.containers import Container

from psfleet.errors import LostPeerError
from psfleet.manifests.container import USER


def put_files(container: Container, folder: str, files: Mapping[str, bytes]) -> None:
    """Puts files into a folder of a volume; without files, nothing.

    They last as long as the container, over its restarts. Unlike mounted files they need not be readable by the user of
    the container on this machine, and the engine may be on another one.

    Args:
        folder: Its parent exists in the container; it is made.

    Raises:
        LostPeerError: The engine refuses them.
    """
    if not files:
        return
    path = PurePosixPath(folder)
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        made = _entry(path.name, user_of(container), 0o500)
        made.type = tarfile.DIRTYPE
        archive.addfile(made)
        for name, data in files.items():
            entry = _entry(f"{path.name}/{name}", user_of(container), 0o400)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    if not container.put_archive(str(path.parent), content.getvalue()):
        raise LostPeerError(f"the Docker engine does not put {', '.join(files)} into container {container.name}")


def user_of(container: Container) -> int:
    """The user id of a container's process; images of psfleet have a number."""
    user = str(container.attrs["Config"]["User"]).partition(":")[0]
    return int(user) if user.isdecimal() else USER


def _entry(name: str, user: int, mode: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.uid, entry.mode = user, mode
    return entry
