"""What a worker's heartbeats say: whether it is there."""

from __future__ import annotations

from psfleet.control import control_pb2 as pb

ALIVE_SECS = 5.0
"""A worker that was silent for longer counts as gone; it says something each second."""


def is_alive(worker: pb.WorkerState) -> bool:
    """Whether it spoke lately and did not say goodbye, as a ps tells."""
    return 0 <= worker.silent_secs < ALIVE_SECS
