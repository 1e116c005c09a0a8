"""A worker's link to the driver of its study or prediction: a folder of this machine, or the driver's control plane."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Protocol

import grpc

from psfleet.control.credentials import read_identity
from psfleet.control.driver_client import DriverClient
from psfleet.errors import DONE, BadJobError, LostPeerError, PsfleetError, ReplacedError, StoppedError
from psfleet.job import trial_records
from psfleet.job.sections import Deadlines
from psfleet.service.settings import Settings
from worker_service.trial.signs_of_life import SignsOfLife

logger = logging.getLogger("psfleet.worker")


class DriverLink(Protocol):
    """See the module.

    Attributes:
        folder: The driver's folder, or one of this container with copies of some of its files.
    """

    folder: Path

    def beat(self) -> int | None:
        """Gives a sign of life; the exit code with which this process ends now, or None.

        Raises:
            OSError: The sign cannot be given, and this process continues.
        """

    def fetch(self, name: str) -> Path:
        """The file of this name of the driver."""

    def deliver(self, path: Path) -> None:
        """Gives the driver a file in `folder`, of the same name in its folder."""

    def fail(self, error: PsfleetError) -> None:
        """Says why this process ends; no error is raised if the driver cannot be reached."""

    def storage(self) -> AbstractContextManager[str]:
        """Context manager for the Unix socket of the study's storage; empty: the one that the driver has named."""


class FolderLink:
    """See `DriverLink`; for a process that the driver has started.

    Args of the constructor:
        folder: The driver's.
        index: Of this worker.
    """

    def __init__(self, folder: Path, index: int) -> None:
        self.folder = folder
        self._life = trial_records.life_file(folder, index)

    def beat(self) -> int | None:
        """See `DriverLink`."""
        self._life.touch()
        return None

    def fetch(self, name: str) -> Path:
        """See `DriverLink`."""
        return self.folder / name

    def deliver(self, path: Path) -> None:
        """See `DriverLink`. It is there."""

    def fail(self, error: PsfleetError) -> None:
        """See `DriverLink`. The driver reads it in the log."""

    def storage(self) -> AbstractContextManager[str]:
        """See `DriverLink`."""
        return nullcontext("")


class ContainerLink:
    """See `DriverLink`; for a container. Its folder is removed by `close`, and when nothing is left to do.

    Args of the constructor:
        client: Of the driver.
        folder: Its own, which is empty.
        deadlines: Of the job.
        clock: Monotonic time in seconds.
    """

    def __init__(
        self,
        client: DriverClient,
        folder: Path,
        deadlines: Deadlines,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.folder = folder
        self._client = client
        self._clock = clock
        self._answered = clock()
        self._lost_secs = deadlines.start_secs

    def beat(self) -> int | None:
        """See `DriverLink`. A driver that was lost may be started again."""
        try:
            code = self._client.beat()
        except ReplacedError as error:
            logger.warning("%s", error)
            return error.exit_code
        except LostPeerError as error:
            if self._clock() - self._answered > self._lost_secs:
                logger.error(
                    "%s, for %g s", error, self._lost_secs, extra={"event": "failed", "exit_code": error.exit_code}
                )
                return error.exit_code
            raise OSError(str(error)) from error
        except PsfleetError as error:
            logger.error("%s", error, extra={"event": "failed", "exit_code": error.exit_code})
            return error.exit_code
        self._answered = self._clock()
        if code is not None:
            _log_end(code)
        if code == DONE:
            # The caller ends this process, whose main thread waits.
            self.close()
        return code

    def fetch(self, name: str) -> Path:
        """See `DriverLink`."""
        path = self.folder / name
        if not path.resolve().is_relative_to(self.folder.resolve()):
            raise BadJobError(f"the driver names a file {name!r}, expected one in its folder")
        if path.parent != self.folder:
            # The folder itself may have been removed: this process ends.
            path.parent.mkdir(exist_ok=True)
        self._client.fetch(name, path)
        return path

    def deliver(self, path: Path) -> None:
        """See `DriverLink`. The driver's file replaces this one."""
        self._client.deliver(str(path.relative_to(self.folder)), path)
        path.unlink()

    def fail(self, error: PsfleetError) -> None:
        """See `DriverLink`."""
        with suppress(PsfleetError):
            self._client.fail(error)

    @contextmanager
    def storage(self) -> Iterator[str]:
        """See `DriverLink`."""
        # Not in a folder of the run, whose path may be too long for a socket.
        private = tempfile.mkdtemp(prefix="psfleet-")
        server = grpc.server(ThreadPoolExecutor(2, "storage"), handlers=(self._client.relay(),))
        try:
            socket = f"{private}/storage"
            server.add_insecure_port(f"unix:{socket}")
            server.start()
            yield socket
        finally:
            server.stop(0)
            shutil.rmtree(private, ignore_errors=True)

    def close(self) -> None:
        """Removes the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)


@contextmanager
def linked(settings: Settings, end_process: Callable[[int], object]) -> Iterator[DriverLink]:
    """Context manager for the link of this process; says to the driver with which error the block ends.

    Args:
        end_process: Called with the exit code if the driver says at once that nothing is left to do; does not return.

    Raises:
        BadJobError: The certificate is not that of a worker, or the driver refuses this worker.
        LostPeerError: The driver does not answer within `deadlines.start_secs`.
    """
    if settings.driver is None:
        yield FolderLink(settings.out, settings.index)
        return
    deadlines = settings.job.deadlines if settings.job is not None else Deadlines()
    identity = read_identity(settings.tls, "worker")
    process = ""
    if settings.life is not None:
        process = settings.life.name
        # Whether the driver answers or not.
        SignsOfLife.in_file(settings.life).start()
    client = DriverClient(settings.driver, settings.run, settings.index, deadlines.start_secs, identity, process)
    if (code := client.join()) is not None:
        _log_end(code)
        end_process(code)
    link = ContainerLink(client, _own_folder(settings.out, settings.index), deadlines)
    try:
        yield link
    except PsfleetError as error:
        if not isinstance(error, (StoppedError, ReplacedError)):
            link.fail(error)
        raise
    except Exception as error:
        failure = PsfleetError(f"a bug in psfleet: {type(error).__name__}: {error}")
        link.fail(failure)
        raise
    finally:
        link.close()


def _log_end(code: int) -> None:
    logger.info("nothing is left to do", extra={"event": "over", "exit_code": code})


def _own_folder(out: Path, index: int) -> Path:
    """An empty folder on the disk of the container, if there is one; a killed process may have left an earlier one."""
    prefix = f"psfleet-worker-{index}-"
    disk = out if os.access(out, os.W_OK) else Path(tempfile.gettempdir())
    for left in disk.glob(f"{prefix}*"):
        shutil.rmtree(left, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=prefix, dir=disk))
