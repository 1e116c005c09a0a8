"""Clears a resource container of TensorFlow on some tasks."""

from __future__ import annotations

from collections.abc import Sequence

import grpc

from psfleet.control import control_pb2 as pb
from psfleet.control.attendance import ANSWER_SECS, FleetTask
from psfleet.control.credentials import CHANNEL_OPTIONS
from psfleet.errors import LostPeerError

METHOD = "/tensorflow.WorkerService/CleanupAll"
"""What `Session.reset` calls on each task, after it has closed every session of its own server (`Master::Reset`)."""


def clear(tasks: Sequence[FleetTask], container: str) -> None:
    """Drops all resources of a container.

    Args:
        tasks: Where.
        container: Name of the resource container, not empty.

    Raises:
        LostPeerError: Tasks do not answer; the others have dropped it.
    """
    request = pb.CleanupAllRequest(container=[container])
    problems = []
    for task in tasks:
        with grpc.insecure_channel(task.data, options=CHANNEL_OPTIONS) as channel:
            call = channel.unary_unary(METHOD, request_serializer=pb.CleanupAllRequest.SerializeToString)
            try:
                call(request, timeout=ANSWER_SECS)
            except grpc.RpcError as error:
                problems.append(f"{task.name} at {task.data}: {error.details()}")
    if problems:
        raise LostPeerError("; ".join(problems))
