"""A part of a graph has what its nodes need, and can be imported."""

from __future__ import annotations

import tensorflow as tf
import tensorflow.compat.v1 as v1

from psfleet.tf.subgraph import subgraph


def test_a_part_has_what_its_nodes_need_on_the_devices_that_it_is_told() -> None:
    with tf.Graph().as_default() as graph:
        with tf.device("/job:a/task:1"):
            first = tf.constant(2.0, name="first")
        with tf.device("/job:b/task:2"), tf.control_dependencies([tf.no_op(name="before")]):
            tf.add(first, tf.constant(3.0, name="other"), name="sum")
        tf.constant(0.0, name="unused")
    found = subgraph(graph.as_graph_def(), ["sum"], on=lambda device: device.replace("job", "was"))
    assert {each.name: each.device for each in found.node} == {
        "first": "/was:a/task:1",
        "other": "/was:b/task:2",
        "before": "/was:b/task:2",
        "sum": "/was:b/task:2",
    }


def test_a_node_is_not_placed_beside_one_that_is_left_out() -> None:
    with tf.Graph().as_default() as graph:
        left_out, kept = tf.constant(1.0, name="left_out"), tf.constant(2.0, name="kept")
        for name, beside in (("first", left_out), ("second", kept)):
            with v1.colocate_with(beside.op):
                tf.identity(kept, name=name)
    found = subgraph(graph.as_graph_def(), ["first", "second"], on=str)
    beside = {each.name: list(each.attr["_class"].list.s) for each in found.node}
    assert beside == {"kept": [], "first": [], "second": [b"loc:@kept"]}
    with tf.Graph().as_default():
        tf.import_graph_def(found, name="")


def test_functions_are_parts_of_it_with_their_devices() -> None:
    @tf.function
    def doubled(value: tf.Tensor) -> tf.Tensor:
        with tf.device("/job:a/task:1"):
            return value * 2

    with tf.Graph().as_default() as graph:
        tf.identity(doubled(tf.constant(4.0)), name="result")
    found = subgraph(graph.as_graph_def(), ["result"], on=lambda _: "")
    assert not [each.device for function in found.library.function for each in function.node_def if each.device]
    with tf.Graph().as_default() as copy, v1.Session(graph=copy) as session:
        tf.import_graph_def(found, name="")
        assert session.run("result:0") == 8
