"""The folder of a standing fleet: the wanted fleet, its state, its logs, and the lock that its supervisor holds."""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from pydantic import ValidationError

from psfleet.errors import DeadlineError, UsageError
from psfleet.files import replace_file, try_lock
from psfleet.job.fleet_access import FleetAccess
from psfleet.job.fleet_file import FleetFile
from psfleet.platforms.standing.state import FleetState
from psfleet.polling import wait_until
from psfleet.run_folder import LOGS
from psfleet.service import settings

logger = logging.getLogger("psfleet.launch")

MODE = 0o700
"""Of the folders: their files have addresses of ports on which anyone may run code."""
CLIENT = "client"
"""Role of the certificate of clients and commands."""
COMMAND_SECS = 10.0
"""How long a command waits for another one on the same fleet."""


@dataclass(frozen=True)
class FleetFolder:
    """Paths in the folder of one fleet, and what they hold."""

    path: Path

    @property
    def name(self) -> str:
        """The fleet's name."""
        return self.path.name

    @property
    def wanted(self) -> Path:
        """The fleet file, resolved, as JSON; without it no process of the fleet is started."""
        return self.path / "fleet.json"

    @property
    def state_file(self) -> Path:
        """See `state`."""
        return self.path / "state.json"

    @property
    def supervisor_log(self) -> Path:
        """What the supervisors log."""
        return self.path / LOGS / "supervisor.log"

    @property
    def certificates(self) -> Path:
        """The fleet's authority and certificates (see `psfleet.tls.certificates`); only there with TLS."""
        return self.path / "certs"

    def credentials(self, role: str) -> Path | None:
        """The folder of a role's certificate; None: the fleet has no TLS."""
        return self.certificates / role if self.certificates.is_dir() else None

    def log(self, role: str, index: int) -> Path:
        """The log of a process."""
        return self.path / LOGS / f"{role}-{index}.log"

    def file(self) -> FleetFile | None:
        """The wanted fleet; None: it is not wanted, or of another version of psfleet."""
        try:
            return FleetFile.model_validate_json(self.wanted.read_bytes())
        except (OSError, ValidationError):
            return None

    def state(self) -> FleetState | None:
        """The recorded state; None: there is none that this version of psfleet knows."""
        try:
            return FleetState.model_validate_json(self.state_file.read_bytes())
        except (OSError, ValidationError):
            return None

    def access(self) -> FleetAccess:
        """What a client knows of the fleet.

        Raises:
            UsageError: The fleet is down.
        """
        state = self.state()
        if state is None or not self.is_up():
            raise UsageError(f"fleet {self.name} is down, expected it up: `psfleet fleet up FLEET.yaml` starts it")
        return state.access

    def make(self, file: FleetFile) -> None:
        """Creates the folder, with certificates if the fleet has TLS, and writes the wanted fleet.

        Raises:
            UsageError: It cannot be written, or the authority of its certificates has expired.
        """
        try:
            (self.path / LOGS).mkdir(parents=True, exist_ok=True, mode=MODE)
            for path in (self.path, self.path.parent, self.path / LOGS):
                path.chmod(MODE)
            if file.tls:
                renew_certificates(self)
            elif self.certificates.exists():
                shutil.rmtree(self.certificates)
            replace_file(self.wanted, file.model_dump_json(indent=2))
        except OSError as error:
            raise UsageError(
                f"{self.path}: {error.strerror or error}, expected a folder that can be written"
            ) from error

    def is_up(self) -> bool:
        """Whether a supervisor runs."""
        try:
            with self._lock_file("r") as lock:
                return not try_lock(lock, fcntl.LOCK_SH)
        except OSError:
            return False

    @contextmanager
    def supervising(self) -> Iterator[bool]:
        """Context manager that holds the supervisor's lock; waits for it without limit.

        Its value is False if the folder was deleted meanwhile: one of the same name is another fleet's.
        """
        with self._lock_file("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                is_same = os.path.samestat(os.fstat(lock.fileno()), (self.path / "supervisor.lock").stat())
            except FileNotFoundError:
                is_same = False
            yield is_same

    @contextmanager
    def without_supervisor(self, timeout_secs: float) -> Iterator[None]:
        """Context manager that holds the supervisor's lock once all supervisors have ended.

        Raises:
            DeadlineError: They have not ended in time.
        """
        with self._lock_file("w") as lock:
            what = f"the supervisor of fleet {self.name} to end"
            wait_until(lambda: try_lock(lock, fcntl.LOCK_EX), timeout_secs, what)
            yield

    def has_processes(self) -> bool:
        """Whether a process of the fleet runs, with or without a supervisor."""
        state = self.state()
        return state is not None and any(task.is_alive() for task in state.tasks)

    def remove(self, keeps_logs: bool = False) -> None:
        """Deletes the folder, or all of it but the logs."""
        if keeps_logs:
            self.state_file.unlink(missing_ok=True)
        else:
            shutil.rmtree(self.path)

    def _lock_file(self, mode: str) -> IO[str]:
        return (self.path / "supervisor.lock").open(mode)


def renew_certificates(folder: FleetFolder) -> None:
    """Creates the certificates of a fleet, or renews them in the last third of their validity.

    Raises:
        UsageError: They cannot be written, or their authority has expired.
    """
    # Imported here: it takes 80 ms.
    from psfleet.tls import certificates

    certificates.ensure(folder.certificates)


def fleets_folder() -> Path:
    """Holds the folders of all standing fleets of this user."""
    return settings.state_folder() / "fleets"


def fleet_folders() -> list[FleetFolder]:
    """The standing fleets of this user, those included that are down after the machine was started again."""
    try:
        folder = fleets_folder()
        return [FleetFolder(path) for path in sorted(folder.iterdir()) if path.is_dir()] if folder.is_dir() else []
    except (OSError, RuntimeError) as error:
        # No home, or one of another user: there are none.
        logger.debug("no standing fleets: %s", error)
        return []


def find(name: str) -> FleetFolder:
    """The folder of a fleet.

    Raises:
        UsageError: There is no such fleet.
    """
    known = fleet_folders()
    for folder in known:
        if folder.name == name:
            return folder
    names = ", ".join(folder.name for folder in known) or "there is none"
    raise UsageError(f"no fleet {name!r}, expected one that `psfleet fleet up` started: {names}")


@contextmanager
def one_command(name: str) -> Iterator[FleetFolder]:
    """Context manager during which no other command starts or ends the fleet.

    Raises:
        UsageError: Another command does, or the folder cannot be written.
    """
    try:
        root = fleets_folder()
    except RuntimeError as error:
        raise UsageError(f"{error}, expected HOME, XDG_STATE_HOME or PSFLEET_STATE") from error
    try:
        root.mkdir(parents=True, exist_ok=True, mode=MODE)
        lock = (root / f".{name}.lock").open("w")
    except OSError as error:
        raise UsageError(f"{root}: {error.strerror or error}, expected a folder that can be written") from error
    with lock:
        try:
            wait_until(lambda: try_lock(lock, fcntl.LOCK_EX), COMMAND_SECS, f"another command on fleet {name}")
        except DeadlineError as error:
            raise UsageError(f"another command starts or ends fleet {name}, expected one at a time") from error
        yield FleetFolder(root / name)
