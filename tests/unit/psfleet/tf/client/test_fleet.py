"""Clients of a standing fleet: shared variables, containers, resets, sessions and their end."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1
from support.in_process_fleet import InProcessFleet

from psfleet.addresses import Address
from psfleet.control.attendance import FleetTask
from psfleet.errors import BadJobError, LostPeerError, UsageError
from psfleet.polling import wait_until
from psfleet.processes.ports import free_addresses
from psfleet.tf.client import Fleet, FleetSession
from psfleet.tf.client.session import open_session
from psfleet.tf.client_sessions import drop_sessions

SECS = 20.0
"""Far more than anything here takes."""


def variable(fleet: Fleet, container: str, value: float = 0.0, ps: int = 0) -> tuple[tf.Graph, tf.Variable]:
    """A variable named x in a graph of its own."""
    with tf.Graph().as_default() as graph, fleet.container(container), tf.device(fleet.device("ps", ps)):
        return graph, v1.get_variable("x", initializer=value)


def test_a_fleet_has_its_tasks(fleet: Fleet, standing: InProcessFleet) -> None:
    assert fleet.cluster_spec.as_dict() == {"ps": standing.access.ps, "worker": standing.access.workers}
    assert (fleet.num_ps, fleet.num_workers) == (2, 1)
    assert fleet.device("worker", 0) == "/job:worker/task:0"
    with pytest.raises(UsageError, match=r"fleet lab has no ps 2, expected one of 2 ps and 1 worker$"):
        fleet.device("ps", 2)


def test_clients_share_variables_by_container_and_name(fleet: Fleet, other: Fleet, name: str) -> None:
    graph, x = variable(fleet, name)
    others, same = variable(other, name)
    with fleet.session(graph) as session, other.session(others) as second:
        session.run(x.initializer)
        with others.as_default():
            second.run(same.assign_add(3.0))
        assert session.run(x) == 3.0


def test_a_session_computes_on_workers_and_ends_with_its_block(
    fleet: Fleet, standing: InProcessFleet, name: str
) -> None:
    graph, x = variable(fleet, name, ps=1)
    with graph.as_default(), tf.device(fleet.device("worker", 0)):
        doubled = 2.0 * x.assign(4.0)
    with fleet.session(graph, config=v1.ConfigProto(log_device_placement=False)) as session:
        assert session.run(doubled) == 8.0
        assert doubled.device == fleet.device("worker", 0)
        assert all(number > 0 for number in standing.num_sessions())
    wait_until(standing.num_sessions, SECS, "the fleet to drop the session", done=lambda seen: not any(seen))


def test_a_config_with_a_clusterspec_is_refused(fleet: Fleet) -> None:
    config = v1.ConfigProto(cluster_def=fleet.cluster_spec.as_cluster_def())
    with pytest.raises(UsageError, match="config has a cluster_def, expected none"):
        fleet.session(tf.Graph(), config)


def test_a_reset_drops_one_container_and_ends_no_session(fleet: Fleet, name: str) -> None:
    kept, first = variable(fleet, f"{name}/kept", 1.0)
    graph, x = variable(fleet, name, 2.0)
    with kept.as_default(), fleet.container(f"{name}/kept"), tf.device(fleet.device("ps", 1)):
        second = v1.get_variable("y", initializer=3.0)
    with kept.as_default():
        both = tf.stack([first, second])
    with graph.as_default():
        is_there = v1.is_variable_initialized(x)
    with fleet.session(kept) as session, fleet.session(graph) as dropped:
        session.run([first.initializer, second.initializer])
        dropped.run(x.initializer)
        assert dropped.run(is_there)
        fleet.reset(name)
        assert not dropped.run(is_there)
        assert session.run(both).tolist() == [1.0, 3.0]


def test_a_task_that_is_absent_is_named_before_a_session_is_opened(standing: InProcessFleet) -> None:
    absent = free_addresses(1)[0]
    access = standing.access.model_copy(update={"workers": [*standing.access.workers, absent.data]})
    client = Fleet(access, Address.parse(standing.access.ps[0]))
    began = time.monotonic()
    with pytest.raises(LostPeerError, match=rf"^worker 1 at {re.escape(absent.data)}: .*Connection refused"):
        client.session(tf.Graph())
    assert time.monotonic() - began < SECS
    with pytest.raises(LostPeerError, match=r"^worker 1 at"):
        client.reset("any")


def test_a_client_of_another_start_of_the_fleet_is_refused(standing: InProcessFleet) -> None:
    client = Fleet(standing.access.model_copy(update={"id": "lab-0"}), Address.parse(standing.access.ps[0]))
    with pytest.raises(BadJobError, match=r"client knows fleet 'lab-0', expected 'lab-.*': it was started again"):
        client.session(tf.Graph())


def test_the_sessions_of_a_client_that_has_ended_are_dropped_and_no_others(
    fleet: Fleet, standing: InProcessFleet, name: str
) -> None:
    graph, x = variable(fleet, name)
    session, lasting = fleet.session(graph), fleet.session(graph)
    session.run(x.initializer)
    # What the end of the client's process does: its connections break, and nothing is closed.
    session._attends.close()
    with graph.as_default():
        added = x.assign_add(1.0)

    def failure() -> str:
        try:
            session.run(added)
        except LostPeerError as error:
            return str(error)
        return ""

    assert "Session handle is not found" in wait_until(failure, SECS, "the session to be dropped")
    assert lasting.run(x) >= 0.0
    lasting.close()


def test_sessions_of_another_job_outlive_a_drop(fleet: Fleet, standing: InProcessFleet, name: str) -> None:
    graph, x = variable(fleet, name)
    with fleet.session(graph) as session:
        session.run(x.initializer)
        drop = partial(drop_sessions, f"grpc://{standing.access.ps[0]}")
        drop("client_0123456789abcdef")
        assert session.run(x) == 0.0


def test_a_ps_that_does_not_answer_holds_up_no_queue_on_another_one(
    fleet: Fleet, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits, answers = threading.Event(), threading.Event()

    def opened(access: Any, tasks: Sequence[FleetTask], *others: Any) -> FleetSession:
        if tasks[0].name == "ps 1":
            waits.set()
            answers.wait(SECS)
        return open_session(access, tasks, *others)

    monkeypatch.setattr("psfleet.tf.client.fleet.open_session", opened)
    with ThreadPoolExecutor(2) as pool:
        frozen, healthy = (partial(fleet.queue, name, [tf.int64], device=fleet.device("ps", ps)) for ps in (1, 0))
        late = pool.submit(frozen)
        assert waits.wait(SECS)
        try:
            assert pool.submit(healthy).result(SECS / 2).size() == 0
            assert not late.done()
        finally:
            answers.set()
        assert late.result(SECS).size() == 0
