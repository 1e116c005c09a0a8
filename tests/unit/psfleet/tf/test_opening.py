"""A session with a task that is absent: it is not waited for, and not kept."""

from __future__ import annotations

import threading

import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1

from psfleet.polling import wait_until
from psfleet.processes.ports import free_addresses
from psfleet.tf.opening import open_within
from psfleet.tf.server import boot

OPEN_SECS = 0.5
WAIT_SECS = 60.0


class RecordedSession(v1.Session):
    """Records when it has been closed."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self.is_closed = threading.Event()

    def close(self) -> None:
        super().close()
        self.is_closed.set()


def test_a_session_with_an_absent_task_fails_at_its_deadline_and_is_closed_when_the_task_is_there() -> None:
    own, absent = free_addresses(2)
    target = boot(own, None)
    config = v1.ConfigProto()
    cluster = tf.train.ClusterSpec({"opening_own": {0: own.data}, "opening_other": {0: absent.data}})
    config.cluster_def.CopyFrom(cluster.as_cluster_def())
    config.experimental.share_session_state_in_clusterspec_propagation = True
    graph = tf.Graph()
    with graph.as_default(), graph.device("/job:opening_own/task:0"):
        operation = tf.no_op()
    session = RecordedSession(target, graph=graph, config=config)
    with pytest.raises(TimeoutError):
        open_within(OPEN_SECS, session, operation)
    assert not session.is_closed.is_set()
    boot(absent, None)
    wait_until(session.is_closed.is_set, WAIT_SECS, "the session to be closed")
