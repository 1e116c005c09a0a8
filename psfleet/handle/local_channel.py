"""The channel to a run of local processes: gRPC on loopback, and files."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

from psfleet.control.credentials import read_identity
from psfleet.control.run_client import RunClient
from psfleet.errors import LostPeerError, UsageError
from psfleet.handle.channel import AGAIN_SECS, Call, End, RunChannel
from psfleet.launch.runs import log_entries, newest_entry
from psfleet.platforms.local.control_file import ControlFile
from psfleet.polling import wait_until
from psfleet.report.attempts import earlier_report
from psfleet.report.schema import Report
from psfleet.run_folder import is_locked

START_SECS = 60.0
"""For which `stop` waits for a launcher, which may have to delete the checkpoints of an earlier run first."""


class LocalChannel(RunChannel):
    """A `RunChannel` to a run of local processes."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, str(folder))

    def is_live(self) -> bool:
        """See `RunChannel`: a launcher holds the folder's lock for as long as it lives."""
        return is_locked(self.folder)

    def has_ended(self) -> bool:
        """See `RunChannel`: the launcher looks after the run."""
        return not self.is_live()

    def end(self) -> End | None:
        """See `RunChannel`."""
        report = self._report()
        return None if report is None else End(report.status, report.final_step)

    def logged_step(self) -> int | None:
        """See `RunChannel`."""
        step = newest_entry(log_entries(self.folder, "worker", 0), "fleet", "step").get("step")
        return None if step is None else int(step)

    def stop(self) -> None:
        """See `RunChannel`. The launcher passes its signal on to the chief, and bounds what the stop may take.

        A launcher that has not started its processes yet is awaited.
        """

        def launched() -> ControlFile | None:
            self._require_live()
            return ControlFile.read(self.folder)

        found = wait_until(launched, START_SECS, f"the launcher of {self.where} to start the run", poll_secs=AGAIN_SECS)
        if found is not None:
            with suppress(ProcessLookupError):
                os.kill(found.launcher, signal.SIGTERM)

    def report(self) -> Report:
        """See `RunChannel`."""
        report = self._report()
        if report is None:
            raise UsageError(f"{self.where}: the run has left no report: its launcher was killed; start it again")
        return report

    def _report(self) -> Report | None:
        """A launcher that was killed leaves the report of the attempt before, which is not this run's."""
        report, found = earlier_report(self.folder), ControlFile.read(self.folder)
        return None if report is not None and found is not None and report.run != found.run else report

    def _attempt(self, call: Call) -> Any:
        """See `RunChannel`."""
        found = ControlFile.read(self.folder)
        if found is None:
            raise LostPeerError(f"the run in {self.folder} starts")
        call.bind(found.run)
        call.caller.run = found.run
        identity = read_identity(Path(found.tls) if found.tls else None, "client")
        client = RunClient(found.chief, identity=identity)
        try:
            return client.call(
                call.method, call.made, lambda: self._check(found, call), call.timeout_secs, call.consume
            )
        finally:
            client.close()

    def _check(self, found: ControlFile, call: Call) -> None:
        """Raises `LostPeerError` if the run has ended, or another one has the folder."""
        call.goes_on()
        if not self.is_live() or ControlFile.read(self.folder) != found:
            raise LostPeerError(f"run {found.run} has ended")
