"""Runs a command in a pod, and reads what it prints."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial

from kubernetes import client
from kubernetes.stream import stream
from kubernetes.stream.ws_client import ERROR_CHANNEL

from psfleet.errors import LostPeerError
from psfleet.launch.kubernetes.api import ANSWER_SECS, Cluster, translate_errors
from psfleet.polling import run_within

SILENT_SECS = 120.0
"""How long a command may print nothing."""


def execute(cluster: Cluster, pod: str, container: str, command: Sequence[str]) -> Iterator[bytes]:
    """Runs a command in a container of a pod to its end, and yields its standard output in chunks as they arrive.

    Raises:
        UsageError: The API refuses it.
        LostPeerError: The API does not answer, the command printed nothing for `SILENT_SECS`, or it failed.
    """
    # A separate client: `stream` replaces a method of the client until the connection is open.
    core = client.CoreV1Api(client.ApiClient(cluster.api.configuration))
    opening = partial(
        stream, core.connect_get_namespaced_pod_exec, pod, cluster.namespace, container=container,
        command=list(command),
        stdout=True, stderr=True, stdin=False, tty=False, _preload_content=False, binary=True,
    )  # fmt: skip
    printed_errors = b""
    # The package opens the connection without a deadline.
    with translate_errors(f"run {command[0]} in pod {pod}"), closing(run_within(ANSWER_SECS, opening)) as reply:
        deadline = time.monotonic() + SILENT_SECS
        while reply.is_open() or reply.peek_stdout():
            reply.update(timeout=1)
            if reply.peek_stderr():
                printed_errors += reply.read_stderr()
            if reply.peek_stdout():
                yield reply.read_stdout()
                deadline = time.monotonic() + SILENT_SECS
            elif time.monotonic() > deadline:
                raise LostPeerError(f"{command[0]} in pod {pod} printed nothing for {SILENT_SECS:g} s")
        # The API reports the command's end on this channel; a broken connection leaves it empty.
        verdict = json.loads(reply.read_channel(ERROR_CHANNEL) or '{"message": "the connection broke"}')
    if verdict.get("status") != "Success":
        problem = " ".join(printed_errors.decode(errors="replace").split()) or verdict.get("message", "no message")
        raise LostPeerError(f"{' '.join(command)} in pod {pod}: {problem}")
