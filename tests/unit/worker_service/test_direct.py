"""Steps that need no other process run in a session of this process alone, with variables that a server has filled."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1
from support.exchange_server import GREETING, WAIT_SECS
from support.programs import exact_graph_program
from tensorflow.core.protobuf.rewriter_config_pb2 import RewriterConfig

from psfleet.job.job import Job, parse_job
from psfleet.job.program import GraphProgram
from psfleet.layout import Layout
from psfleet.polling import wait_until
from worker_service import direct
from worker_service.connections import Connections
from worker_service.direct import CALLING_THREAD, DirectPart, can_be_direct, options_of_step
from worker_service.frontends import front_end
from worker_service.step import StepGraph
from worker_service.step_sessions import StepSessions

OPTIONS = v1.RunOptions(timeout_in_ms=30_000)


def job_of(fleet: dict[str, Any] | None = None, **sections: Any) -> Job:
    fields = {
        "name": "sample",
        "program": "program:build",
        "fleet": {"workers": 2, **(fleet or {})},
        "optimizer": {"name": "adam", "learning_rate": 0.1},
        "train": {"steps": 20, "batch_size": 4},
    }
    return parse_job({**fields, **sections})


def step_graph(job: Job) -> StepGraph:
    program = GraphProgram(loss=exact_graph_program.loss, train=exact_graph_program.train)
    front = front_end(program, job, 2, 1)
    layout = Layout.plan(front.parameters, front.state, front.frozen, job.fleet.ps, 1 << 20)
    connections = Connections(GREETING, None, "ps", WAIT_SECS, unix_sockets=True)
    return StepGraph(front, job, layout, 1, "run", 1, connections=connections)


@pytest.fixture
def filled() -> Iterator[tuple[DirectPart, v1.Session, dict[str, Any]]]:
    """A graph whose variable a server has filled, beside one of the program; and its elements."""
    with tf.Graph().as_default() as graph:
        pulled = v1.get_variable("pulled", [3], initializer=v1.zeros_initializer(), use_resource=True)
        own = v1.get_variable("own", [], initializer=v1.ones_initializer(), use_resource=True)
        fill = pulled.assign(tf.range(3.0), read_value=False)
        with tf.device("/job:other/task:7"):
            elsewhere = tf.constant(2.0, name="elsewhere")
        with v1.colocate_with(elsewhere.op):
            beside = tf.constant(3.0, name="beside")
        counted = v1.while_loop(lambda at: at < 5.0, lambda at: at + own, [tf.identity(beside)])
        with tf.control_dependencies([fill]):
            filled = tf.no_op()
        found = {"pulled": pulled, "own": own, "writer": tf.group(filled), "counted": counted}
        initializer = v1.global_variables_initializer()
        part = DirectPart(graph)
    config = v1.ConfigProto()
    config.graph_options.place_pruned_graph = True
    with v1.Session(graph=graph, config=config) as server:
        server.run(found["writer"])
        yield part, server, {**found, "initializer": initializer}


@pytest.mark.parametrize(
    ("job", "is_direct"),
    [
        (job_of(), True),
        (job_of({"ps": 2}, update={"mode": "async"}), True),
        (job_of(update={"mode": "averaging", "local_steps": 2}), True),
        (job_of({"colocate": True}), False),
        (job_of({"spares": 1}), False),
        (job_of(update={"quorum": 1}), False),
        (job_of({"spares": 1}, update={"mode": "async"}), True),
        (job_of({"parts": 2}), False),
        (job_of(device={"virtual_cpus": 2, "replicas": 2}), False),
        (job_of(device={"virtual_cpus": 1}), False),
    ],
)
def test_a_step_is_direct_if_all_its_operations_are_of_this_workers_cpu(job: Job, is_direct: bool) -> None:
    assert can_be_direct(job) == is_direct


def test_gpus_belong_to_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [kind])
    assert not can_be_direct(job_of())


@pytest.mark.parametrize(
    "update",
    [{}, {"mode": "async"}, {"mode": "ssp", "bound": 2}, {"mode": "averaging", "local_steps": 2}],
    ids=lambda update: update.get("mode", "sync"),
)
def test_the_steps_of_each_mode_are_found_in_their_session(update: dict[str, Any]) -> None:
    job = job_of({"ps": 2}, update=update)
    step = step_graph(job)
    assert step.direct is not None
    with (
        closing(StepSessions("", step, job, v1.ConfigProto(), OPTIONS)) as sessions,
        step.direct.open(job, sessions._operations(), step.initializer) as session,
    ):
        for each in (*step.feeds, *(tensor for fetches in step.steps for tensor in fetches)):
            assert session.graph.get_tensor_by_name(each.name).shape == each.shape
        for piece in step.parameters:
            assert np.array_equal(session.run(step.graph.as_graph_element(piece).name), np.zeros(piece.shape))
    assert not [each.device for each in session.graph.get_operations() if "task" in each.device]


def test_a_graph_without_connections_has_no_direct_part() -> None:
    job = job_of()
    program = GraphProgram(loss=exact_graph_program.loss, train=exact_graph_program.train)
    front = front_end(program, job, 2, 1)
    layout = Layout.plan(front.parameters, front.state, front.frozen, 1, 1 << 20)
    assert StepGraph(front, job, layout, 1, "run", 1).direct is None


def test_what_the_server_has_written_moves_and_the_rest_is_initialized(
    filled: tuple[DirectPart, v1.Session, dict[str, Any]],
) -> None:
    part, server, found = filled
    read = [found[name].op for name in ("counted",)] + [found[name]._graph_element.op for name in ("pulled", "own")]
    with part.open(job_of(), read, found["initializer"]) as session:
        part.take(session, server, [found["writer"]], OPTIONS)
        pulled, own = (session.run(found[name]._graph_element.name) for name in ("pulled", "own"))
        assert pulled.tolist() == [0, 1, 2]
        assert own == 1, "the program's own"
    with pytest.raises(tf.errors.FailedPreconditionError):
        server.run(found["pulled"]._graph_element)


def test_variables_move_in_as_few_calls_as_their_sizes_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct, "MOVED_BYTES", 20)
    with tf.Graph().as_default():
        variables = [v1.get_variable(f"of_{size}", [size], use_resource=True) for size in (2, 3, 1, 9, 5, 4)]
    groups = direct._groups({each.op.name: each for each in variables})
    assert groups == [["of_2", "of_3"], ["of_1"], ["of_9"], ["of_5"], ["of_4"]]
    assert direct._groups({}) == []


def test_what_the_server_writes_later_moves_again(filled: tuple[DirectPart, v1.Session, dict[str, Any]]) -> None:
    part, server, found = filled
    with part.open(job_of(), [found["pulled"]._graph_element.op], found["initializer"]) as session:
        part.take(session, server, [found["writer"]], OPTIONS)
        session.run(found["initializer"].name)
        server.run(found["writer"])
        part.take(session, server, [found["writer"]], OPTIONS)
        assert session.run(found["pulled"]._graph_element.name).tolist() == [0, 1, 2]


def test_loops_run_and_operations_that_are_placed_beside_one_of_another_task(
    filled: tuple[DirectPart, v1.Session, dict[str, Any]],
) -> None:
    part, _, found = filled
    with part.open(job_of(), [found["counted"].op], found["initializer"]) as session:
        assert session.run(found["counted"].name) == 5


@pytest.mark.parametrize("dtype", [tf.bfloat16, tf.float32])
def test_its_session_has_threads_of_its_own_and_fuses_what_runs(
    dtype: tf.DType, monkeypatch: pytest.MonkeyPatch
) -> None:
    configs: list[v1.ConfigProto] = []
    original = v1.Session
    with tf.Graph().as_default() as graph:
        image = tf.zeros([1, 2, 2, 1], dtype)
        made = tf.nn.bias_add(tf.nn.conv2d(image, tf.zeros([1, 1, 1, 1], dtype), 1, "SAME"), tf.zeros([1], dtype))
        initializer = tf.no_op()
        part = DirectPart(graph)

    def session(graph: tf.Graph, config: v1.ConfigProto) -> v1.Session:
        configs.append(config)
        return original(graph=graph, config=config)

    monkeypatch.setattr(direct.v1, "Session", session)
    with part.open(job_of(), [made.op], initializer) as opened:
        assert opened.run(made.name).shape == (1, 2, 2, 1)
    (config,) = configs
    assert config.use_per_session_threads
    is_fused = config.graph_options.rewrite_options.remapping != RewriterConfig.OFF
    assert is_fused == (dtype != tf.bfloat16)


def test_closing_the_sessions_closes_that_of_steps_and_ends_the_watch() -> None:
    job = job_of()
    step = step_graph(job)
    assert step.direct is not None
    sessions = StepSessions("", step, job, v1.ConfigProto(), OPTIONS)
    sessions.watch()
    sessions.own = step.direct.open(job, sessions._operations(), step.initializer)
    sessions.close()
    with pytest.raises(RuntimeError, match="closed"):
        sessions.own.run(step.graph.as_graph_element(step.parameters[0]).name)
    wait_until(
        lambda: not [each for each in threading.enumerate() if each.name == "step-watch"], WAIT_SECS, "the watch to end"
    )


@pytest.mark.parametrize(("threads", "pool"), [(1, CALLING_THREAD), (2, 0)])
def test_with_one_thread_for_operations_it_is_the_calling_one(threads: int, pool: int) -> None:
    assert options_of_step(job_of(device={"inter_op_threads": threads})).inter_op_thread_pool == pool
