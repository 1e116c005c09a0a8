"""The training program of a run as a ps knows it: every process that joins must have the same; no threads, no I/O.

The first process that joins sets it. A restarted ps learns its digest again from heartbeats, and from what joining
workers have read from the other ps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from psfleet.control import control_pb2 as pb
from psfleet.errors import BadJobError
from psfleet.job.program_files import first_difference


@dataclass
class RunProgram:
    """See above.

    Attributes:
        digest: Of all files (see `psfleet.job.program_files`); empty: not known yet.
        files: The digest of each; empty if only the digest of all is known.
    """

    digest: str = ""
    files: Mapping[str, str] = field(default_factory=dict)

    def learn(self, digest: str) -> None:
        """Stores the digest that a member of the run reports, unless this ps knows one."""
        self.digest = self.digest or digest

    def admit(self, request: pb.JoinRequest) -> None:
        """Admits a process with the run's program; one that does not say which it has is admitted, too.

        Raises:
            BadJobError: It has another program; names the first file that differs, if that is known.
        """
        if not request.program:
            return
        self.learn(request.program)
        if request.program == self.digest:
            self.files = self.files or dict(request.program_files)
            return
        file = first_difference(self.files, request.program_files) if self.files else ""
        raise BadJobError(
            f"the training program of the process at {request.address or 'another address'} has digest "
            f"{request.program}, expected {self.digest}, which the run was started with"
            f"{f': {file} differs' if file else ''}; stop the run and start it again to train another program"
        )
