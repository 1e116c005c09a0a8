"""A worker's copy of the parameters has a variable for each bucket, and keeps no copy of what arrives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1
from support.chief_samples import sample_job
from support.exchange_server import GREETING
from support.programs import exact_graph_program

from psfleet.job.program import GraphProgram
from psfleet.layout import Layout, TensorSpec
from psfleet.tf.ancestors import ancestors
from worker_service.connections import Connections
from worker_service.frontends import front_end
from worker_service.local_parameters import LocalParameters
from worker_service.step import StepGraph

LAYOUT = Layout.plan([TensorSpec("w", (5000,)), TensorSpec("b", (3,))], [], [], num_ps=2, bucket_bytes=4096)


def test_pieces_are_the_buckets_of_all_ps() -> None:
    with tf.Graph().as_default():
        parameters = LocalParameters(LAYOUT, is_whole=False)
    flat = LAYOUT.parameters
    assert [piece.shape[0] for piece in parameters.pieces] == [flat.bucket_size] * 2 * flat.buckets_per_shard
    assert flat.buckets_per_shard > 1


def test_a_whole_copy_has_one_piece_which_joins_the_buckets() -> None:
    with tf.Graph().as_default() as graph:
        parameters = LocalParameters(LAYOUT, is_whole=True)
        buckets = [
            tf.fill([LAYOUT.parameters.bucket_size], float(at)) for at in range(2)
        ] * LAYOUT.parameters.buckets_per_shard
        [joined] = parameters.joined(buckets)
        assert [piece.shape[0] for piece in parameters.pieces] == [LAYOUT.parameters.size] == joined.shape
        with v1.Session(graph=graph) as session:
            found = session.run(joined)
    assert found.reshape(len(buckets), -1)[:, 0].tolist() == [0, 1] * LAYOUT.parameters.buckets_per_shard


@pytest.mark.parametrize(
    ("sections", "num_pieces"),
    [
        ({"train": {"accumulate": 2}}, 1),
        ({"update": {"mode": "averaging", "local_steps": 2}}, 1),
        ({"update": {"mode": "async"}}, 2),
    ],
)
def test_what_several_calls_use_is_joined_once(sections: dict[str, Any], num_pieces: int) -> None:
    assert len(step_graph(True, bucket_bytes=1 << 20, **sections).parameters) == num_pieces


def test_each_piece_has_the_value_that_was_assigned_last() -> None:
    with tf.Graph().as_default() as graph:
        parameters = LocalParameters(LAYOUT, is_whole=False)
        received = [v1.placeholder(tf.float32, piece.shape) for piece in parameters.pieces]
        assigned = parameters.assign(received)
        with v1.Session(graph=graph) as session:
            session.run(v1.local_variables_initializer())
            for step in range(2):
                session.run(assigned, {each: np.full(each.shape, step + at) for at, each in enumerate(received)})
                values = session.run(parameters.values)
                assert [set(value) for value in values] == [{step + at} for at in range(len(received))]


def test_as_many_buckets_must_arrive_as_there_are_pieces() -> None:
    with tf.Graph().as_default():
        parameters = LocalParameters(LAYOUT, is_whole=False)
        with pytest.raises(ValueError, match="zip"):
            parameters.assign([tf.zeros(parameters.pieces[0].shape)])


@pytest.mark.parametrize("has_connections", [False, True])
def test_a_step_reads_all_pieces_before_it_sets_one_and_a_pull_reads_none(has_connections: bool) -> None:
    """A gradient need not depend on all of them; and a pull comes when the variables have no value yet."""
    step = step_graph(has_connections)
    [fetched] = step.steps
    needed = ancestors(tensor.op for tensor in fetched)
    reads = {each for each in needed if each.type == "ReadVariableOp" and _is_piece(each, step)}
    sets = {each for each in needed if each.type == "AssignVariableOp" and _is_piece(each, step)}
    assert len(reads) == len(sets) == len(step.parameters) > 1
    for each in sets:
        assert reads <= ancestors(each.control_inputs), each.name
        assert not has_connections or received_as(each) == "PyFunc"
    pulled = ancestors([step.pull.op])
    assert not [each for each in pulled if each.type == "ReadVariableOp" and _is_piece(each, step)]


@pytest.mark.parametrize("has_connections", [False, True])
def test_what_a_step_waits_for_is_on_the_worker_wherever_the_program_updates_its_state(has_connections: bool) -> None:
    """An operation without a device is placed on the first ps."""

    def loss(batch: Any) -> tf.Tensor:
        count = v1.get_variable("count", [], initializer=v1.zeros_initializer(), trainable=False, use_resource=True)
        with tf.device("/device:CPU:0"):
            v1.add_to_collection(v1.GraphKeys.UPDATE_OPS, count.assign_add(1.0, read_value=False))
        return exact_graph_program.loss(batch)

    step = step_graph(has_connections, loss=loss)
    [fetched] = step.steps
    waited = [each for each in ancestors(tensor.op for tensor in fetched) if each.type == "NoOp"]
    assert waited
    assert {each.device.rpartition("/device")[0] or each.device for each in waited} == {
        f"/job:{step.worker_job}/task:1"
    }


def step_graph(
    has_connections: bool, bucket_bytes: int = 1024, loss: Any = exact_graph_program.loss, **sections: Any
) -> StepGraph:
    train = {"steps": 2, "batch_size": 4, **sections.pop("train", {})}
    job = sample_job(fleet={"ps": 2, "workers": 2}, train=train, **sections)
    program = GraphProgram(loss=loss, train=exact_graph_program.train)
    front = front_end(program, job, 2, 1)
    layout = Layout.plan(front.parameters, front.state, front.frozen, job.fleet.ps, bucket_bytes)
    connections = Connections(GREETING, None, "ps", 20.0, unix_sockets=True) if has_connections else None
    return StepGraph(front, job, layout, 1, "run", 1, connections=connections)


def received_as(assign: tf.Operation) -> str:
    """The type of the operation whose output an assignment keeps, with no copy of it in between."""
    source = assign.inputs[1].op
    while source.type in ("EnsureShape", "Identity"):
        source = source.inputs[0].op
    return str(source.type)


def _is_piece(operation: tf.Operation, step: StepGraph) -> bool:
    return operation.inputs[0].op in {piece.handle.op for piece in step.parameters}
