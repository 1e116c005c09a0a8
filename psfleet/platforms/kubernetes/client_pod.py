"""Runs a client of a standing fleet in a pod: its output is this process's, and it ends with this process."""

from __future__ import annotations

import logging
import secrets
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event
from types import FrameType
from typing import Any

from psfleet.errors import DONE, LostPeerError, PsfleetError, StoppedError, UsageError
from psfleet.job.fleet_access import FleetAccess
from psfleet.job.fleet_file import FleetFile
from psfleet.manifests.kubernetes.client import client_pod
from psfleet.manifests.kubernetes.names import CLIENT, STANDING, client_name, component_name, labels, program_map
from psfleet.manifests.kubernetes.program_configmap import Files
from psfleet.platforms.kubernetes.api import Cluster
from psfleet.platforms.kubernetes.client_attendance import delete_left, renewed
from psfleet.platforms.kubernetes.client_log import ClientLog
from psfleet.platforms.kubernetes.events import WaitReasons
from psfleet.platforms.kubernetes.objects import FleetObjects
from psfleet.platforms.kubernetes.pods import Pod
from psfleet.polling import wait_until

logger = logging.getLogger("psfleet.launch")

POLL_SECS = 0.5
AWAY_SECS = 120.0
"""How long the API may not answer while a client runs."""
POD = ("v1", "Pod")
MAX_CLIENTS = 1000
CURE = "put the client into a folder of its own"


class ClientPod:
    """The pod of one client."""

    def __init__(
        self, cluster: Cluster, objects: FleetObjects, reasons: WaitReasons, file: FleetFile, access: FleetAccess
    ) -> None:
        self._cluster = cluster
        self._objects = objects
        self._reasons = reasons
        self._file, self._access = file, access
        self._name = ""
        self._has_looked = False
        # Not that of an earlier client of this index, whose files Kubernetes may be about to delete.
        self._token = f"{component_name(file.name, CLIENT)}-{secrets.token_hex(4)}"
        self._files = program_map(self._token)

    def run(self, script: Path, arguments: Sequence[str]) -> int:
        """Runs a script to its end; its exit code. The pod and its files are deleted in any case.

        Raises:
            UsageError: The files beside the script do not fit into a ConfigMap, or the API refuses a request.
            DeadlineError: The pod does not start within `deadlines.start_secs`.
            LostPeerError: The pod was deleted or evicted, or the API does not answer.
            StoppedError: This process got SIGINT or SIGTERM.
        """
        path = script.resolve()
        files = Files.of(path.parent, CURE)
        config_map = files.config_map(self._token, labels(self._file.name, CLIENT, STANDING))
        delete_left(self._cluster, self._file.name)
        with _stopped_by_signals() as signals:
            try:
                # A request that is left alone could still create what is deleted then.
                with signals.held():
                    self._objects.apply(self._file.name, [config_map])
                    pod = self._create([path.name, *arguments], files)
                    self._objects.set_owner([config_map], pod, POD)
                with renewed(self._cluster, Pod(pod)):
                    self._await_start()
                    return self._follow()
            finally:
                # A first signal that comes now waits: pod and ConfigMap are deleted, or a line says that they are not.
                with signals.held():
                    self._remove()

    def _create(self, command: Sequence[str], files: Files) -> Any:
        """Creates the pod, with the first free index; no two pods have one name.

        Raises:
            UsageError: All indices are taken, or the API refuses the pod.
        """
        for index in range(MAX_CLIENTS):
            # Before it is there: it is deleted whenever this process ends from now on, if it is this client's.
            self._name = client_name(self._file.name, index)
            content = client_pod(self._file, self._access, index, command, self._files, files.items())
            if (created := self._cluster.create_pod(content)) is not None:
                return created
        raise UsageError(f"fleet {self._file.name} has {MAX_CLIENTS} clients, expected fewer")

    def _await_start(self) -> None:
        """Waits until the process begins; logs once why it does not."""
        reported: set[str] = set()

        def state() -> str:
            pod = self._try_look()
            if pod is None:
                return "Kubernetes does not answer"
            if pod.started or pod.is_over:
                return ""
            problem = pod.problem() or self._reasons.of([], [pod]).get(pod.uid, "")
            if problem and problem not in reported:
                reported.add(problem)
                logger.warning("pod %s waits: %s", self._name, problem)
            return problem or pod.state()

        what = f"pod {self._name} to start"
        wait_until(state, self._file.deadlines.start_secs, what, done=lambda seen: not seen, poll_secs=POLL_SECS)

    def _follow(self) -> int:
        """Prints what the process prints until it ends; its exit code."""
        log = ClientLog(self._cluster, self._name)
        while True:
            _print(log.lines(follow=True))
            pod = wait_until(self._try_look, AWAY_SECS, "Kubernetes to answer", poll_secs=POLL_SECS)
            assert pod is not None
            if pod.is_over:
                # The connection may have broken off shortly before the last line.
                _print(log.lines(follow=False))
                return self._exit_code(pod)
            # A log that is refused, or that nobody has, ends at once.
            Event().wait(POLL_SECS)

    def _exit_code(self, pod: Pod) -> int:
        if pod.exit_code is None:
            raise LostPeerError(f"pod {self._name}: {pod.cause() or 'it has ended without an exit code'}")
        if pod.is_disrupted and pod.exit_code != DONE:
            raise LostPeerError(f"pod {self._name} was deleted or evicted while the client ran: {pod.cause()}")
        if pod.is_out_of_memory:
            logger.error("pod %s: %s", self._name, pod.cause())
        return pod.exit_code

    def _try_look(self) -> Pod | None:
        """As `_look`; None: the API does not answer at the moment, or refuses what it has allowed before.

        Its refusal may be temporary: an expired token, a restarting server.
        """
        try:
            pod = self._look()
            self._has_looked = True
            return pod
        except _Deleted:
            raise
        except (LostPeerError, UsageError) as error:
            if isinstance(error, UsageError) and not self._has_looked:
                raise
            logger.debug("%s", error)
            return None

    def _look(self) -> Pod:
        pod = self._own()
        if pod is None:
            raise _Deleted(f"pod {self._name} was deleted while the client ran")
        return pod

    def _own(self) -> Pod | None:
        """The pod, unless it is gone; then that of another client may have its name."""
        found = self._cluster.pod(self._name)
        sources = [volume.config_map for volume in found.spec.volumes or ()] if found is not None else []
        is_own = any(source is not None and source.name == self._files for source in sources)
        return Pod(found) if is_own else None

    def _remove(self) -> None:
        """Deletes the pod, and its ConfigMap, which a pod that was never created does not own."""
        for delete in (self._delete_pod, lambda: self._cluster.delete_config_map(self._files)):
            try:
                delete()
            except PsfleetError as error:
                logger.warning("%s; `psfleet fleet down %s --on kubernetes` deletes it, too", error, self._file.name)

    def _delete_pod(self) -> None:
        pod = self._own() if self._name else None
        if pod is not None:
            self._cluster.delete_pod(self._name, pod.uid)


class _Deleted(LostPeerError):
    """The pod is gone."""


def _print(lines: Iterator[str]) -> None:
    for line in lines:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()


class _Signals:
    """Raises a StoppedError at the first signal; later ones do not end the removal of what there is."""

    def __init__(self) -> None:
        self._is_held = False
        self._number: int | None = None

    def stop(self, number: int, _: FrameType | None) -> None:
        """The handler."""
        if self._number is None:
            self._number = number
            if not self._is_held:
                raise StoppedError(number)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Context manager in which a signal waits for the end of the block."""
        self._is_held = True
        try:
            yield
        finally:
            self._is_held = False
        if self._number is not None:
            raise StoppedError(self._number)


@contextmanager
def _stopped_by_signals() -> Iterator[_Signals]:
    """Context manager that ends its block with a StoppedError at SIGINT or SIGTERM."""
    numbers, signals = (signal.SIGINT, signal.SIGTERM), _Signals()
    before = {number: signal.signal(number, signals.stop) for number in numbers}
    try:
        yield signals
    finally:
        for number, handler in before.items():
            with suppress(TypeError):
                signal.signal(number, handler)
