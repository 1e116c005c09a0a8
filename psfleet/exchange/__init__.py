"""Connections on which workers push gradients to a ps, and pull parameters from it; knows no TensorFlow.

A worker has two connections to each ps, and each carries tensors one way: pushes on one of them, replies on the other.
So each end of a connection belongs to one thread at a time, which TLS demands, and both directions are busy at once.
TensorFlow's own servers would need three messages for a gradient, and copy each byte more often.
"""

from __future__ import annotations

from psfleet.job.job import Job
from psfleet.layout import Layout


def has_connections(job: Job, layout: Layout) -> bool:
    """Whether the workers of a job push and pull on connections, and not by TensorFlow's servers.

    With in-graph replication one client has the steps of all workers, and rows of tables are read within a step.
    """
    return not job.update.is_in_graph and not layout.embeddings
