"""What a ps and the workers exchange of an optimizer is what checkpoints of all modes have."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from psfleet.job.job import Job, parse_job
from psfleet.tf.optimizer_slots import OptimizerSlots, exchanged_slots, from_words, to_words
from psfleet.tf.traced_update import Scalar, TracedUpdate


def job_of(optimizer: dict[str, Any], **update: Any) -> Job:
    fields = {"name": "sample", "program": "program:build", "train": {"steps": 10, "batch_size": 1}}
    return parse_job({**fields, "optimizer": {"learning_rate": 0.1, **optimizer}, "update": update})


@pytest.mark.parametrize(
    ("optimizer", "slots", "scalars"),
    [
        ({"name": "sgd"}, {}, {}),
        ({"name": "momentum"}, {"velocity": 0}, {}),
        ({"name": "adagrad", "initial_accumulator": 0.5, "epsilon": 0.25}, {"accumulator": 0.75}, {}),
        ({"name": "adam", "beta1": 0.5}, {"m": 0, "v": 0}, {"beta1_power": 0.5, "beta2_power": np.float32(0.999)}),
        ({"name": "rmsprop", "centered": True}, {"mg": 0, "momentum": 0, "rms": 0}, {}),
    ],
)
def test_slots_and_scalars_have_the_names_and_initial_values_of_the_optimizer(
    optimizer: dict[str, Any], slots: dict[str, float], scalars: dict[str, float]
) -> None:
    found = exchanged_slots(job_of(optimizer, mode="averaging", local_steps=2), None)
    assert (dict(found.slots), dict(found.scalars)) == (slots, scalars)
    assert (list(found.slots), list(found.scalars)) == (sorted(slots), sorted(scalars))


def test_only_averaging_mode_exchanges_them() -> None:
    assert exchanged_slots(job_of({"name": "adam"}), None) == OptimizerSlots()
    own = job_of({"name": "adam"}, mode="averaging", local_steps=2, average_slots=False)
    assert exchanged_slots(own, None) == OptimizerSlots()


def test_scalars_of_all_types_are_words_and_back() -> None:
    scalars = [np.float32(0.1), np.int64(-(2**40)), np.int32(-3), np.float32(-0.0)]
    with tf.Graph().as_default() as graph:
        words = to_words([tf.constant(scalar) for scalar in scalars])
        back = from_words(words, [tf.dtypes.as_dtype(scalar.dtype) for scalar in scalars])
        none = to_words([])
    with tf.compat.v1.Session(graph=graph) as session:
        found = session.run(back)
        assert session.run(none).shape == (0,)
    for scalar, value in zip(scalars, found, strict=True):
        assert (value.dtype, value.tobytes()) == (scalar.dtype, scalar.tobytes())


def test_those_of_a_program_are_in_its_update() -> None:
    with tf.Graph().as_default() as graph:
        inputs = {name: tf.compat.v1.placeholder(tf.float32, [None], name=name) for name in ("gradient", "parameters")}
        tf.compat.v1.placeholder(tf.float32, [], name="rate")
        slot = tf.compat.v1.placeholder(tf.float32, [None], name="slot/speed")
        count = tf.compat.v1.placeholder(tf.int64, [], name="scalar/count")
        tf.identity(inputs["parameters"] - inputs["gradient"], name="after/parameters")
        tf.identity(slot, name="after/slot/speed")
        tf.identity(count + 1, name="after/scalar/count")
    update = TracedUpdate(
        "Own", {"speed": 2.0}, {"count": Scalar("int64", 3)}, graph.as_graph_def().SerializeToString()
    )
    found = exchanged_slots(job_of({"name": "program"}, mode="averaging", local_steps=2), update)
    assert dict(found.slots) == {"speed": 2.0}
    assert dict(found.scalars) == {"count": 3}
    assert found.dtypes == [tf.int64]
