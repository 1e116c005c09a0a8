"""Runs a command in a pod, and reads what it prints."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from kubernetes.stream import stream
from kubernetes.stream.ws_client import ERROR_CHANNEL, WSClient

from psfleet.errors import LostPeerError
from psfleet.launch.kubernetes.api import Cluster, translate_errors

SILENT_SECS = 120.0
"""How long a command may print nothing."""


class Output:
    """The output of a command in a pod."""

    def __init__(self, reply: WSClient) -> None:
        self._reply = reply
        self._errors = b""

    def chunks(self) -> Iterator[bytes]:
        """Its standard output as it comes, to its end.

        Raises:
            LostPeerError: Nothing came for too long.
        """
        deadline = time.monotonic() + SILENT_SECS
        while True:
            self._reply.update(timeout=1)
            if self._reply.peek_stderr():
                self._errors += self._reply.read_stderr()
            if self._reply.peek_stdout():
                yield self._reply.read_stdout()
                deadline = time.monotonic() + SILENT_SECS
            elif not self._reply.is_open():
                return
            elif time.monotonic() > deadline:
                raise LostPeerError(f"a command in a pod printed nothing for {SILENT_SECS:g} s")

    def problem(self) -> str:
        """Why the command failed; empty if it did not."""
        verdict = self._reply.read_channel(ERROR_CHANNEL)
        result = json.loads(verdict) if verdict else {"status": "Success"}
        if result.get("status") == "Success":
            return ""
        return " ".join(self._errors.decode(errors="replace").split()) or str(result.get("message", "no message"))


@contextmanager
def execution(cluster: Cluster, pod: str, command: Sequence[str]) -> Iterator[Output]:
    """The output of a command in a pod as it comes; the connection is closed with the block.

    Raises:
        UsageError: The API refuses it.
        LostPeerError: The API does not answer.
    """
    with translate_errors(f"run {command[0]} in pod {pod}"):
        reply = stream(
            cluster.core.connect_get_namespaced_pod_exec, pod, cluster.namespace, command=list(command),
            stdout=True, stderr=True, stdin=False, tty=False, _preload_content=False, binary=True,
        )  # fmt: skip
    try:
        yield Output(reply)
    finally:
        reply.close()


def execute(cluster: Cluster, pod: str, command: Sequence[str]) -> None:
    """Runs a command in a pod to its end.

    Raises:
        UsageError: The API refuses it.
        LostPeerError: The API does not answer, or the command failed.
    """
    with execution(cluster, pod, command) as output:
        for _ in output.chunks():
            continue
        if output.problem():
            raise LostPeerError(f"{' '.join(command)} in pod {pod}: {output.problem()}")
