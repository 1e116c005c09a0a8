"""Paths of this machine that the containers of a compose file mount."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from psfleet.job.job import Job
from psfleet.manifests import container
from psfleet.manifests.compose.mounts import bind, plain


class Paths:
    """Host paths of a job's mounts.

    Args of the constructor:
        job_file: Mounts are relative to its folder, which is the program's.
        folder: The folder of the compose file, to which its paths are relative; None: paths are absolute.
    """

    def __init__(self, job_file: Path, folder: Path | None) -> None:
        self._home = job_file.parent.resolve()
        self._folder = folder

    def mounts(self, job: Job) -> list[dict[str, Any]]:
        """The program's folder and the job's own mounts; all read only."""
        pairs = [mount.rsplit(":", 1) for mount in job.container.mounts]
        return [*self.program(job), *(bind(self.source(source), target) for source, target in pairs)]

    def program(self, job: Job) -> list[dict[str, Any]]:
        """The program's folder, unless it is in the image; read only."""
        return [bind(self.source("."), container.PROGRAM)] if job.container.program == "mount" else []

    def source(self, source: str) -> str:
        """Converts a host path, relative to the job file or absolute, to the one in the compose file."""
        path = (self._home / source).resolve()
        if self._folder is None:
            return plain(str(path))
        relative = os.path.relpath(path, self._folder.resolve())
        return plain(relative if relative.startswith(".") else f"./{relative}")
