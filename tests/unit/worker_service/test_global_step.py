"""TensorFlow's global step in a graph program: that of the batch in training, that of the weights everywhere else."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import tensorflow as tf
import tensorflow.compat.v1 as v1
from support.graph_fleet import STEP_SECS, graph_fleet

from psfleet.checkpoint import versions
from psfleet.checkpoint.manifest import Checkpoint, checkpoint_folder, write_manifest
from psfleet.checkpoint.part_writing import write_part
from psfleet.checkpoint.parts import ShardContent
from psfleet.errors import BadJobError
from psfleet.job.job import Job, parse_job
from psfleet.job.program import GraphProgram
from psfleet.job.trial_access import TrialAccess
from psfleet.layout import Layout
from worker_service import graph_export
from worker_service.evaluation import Evaluator
from worker_service.frontends import FrontEnd, front_end, planned
from worker_service.predictions.predictor import predictor
from worker_service.predictions.weights import of_checkpoint, of_trial
from worker_service.trial.training import train

X = np.ones([12, 2], np.float32)


def loss(batch: Any) -> tf.Tensor:
    """The global step, whatever the weights are."""
    step = tf.cast(v1.train.get_or_create_global_step(), tf.float32)
    v1.summary.scalar("global_step", step)
    return tf.reduce_sum(batch * v1.get_variable("w", [2])) * 0 + step


def predict(features: tf.Tensor) -> tf.Tensor:
    """The global step, for each row."""
    step = v1.train.get_or_create_global_step()
    return tf.linalg.matvec(features, v1.get_variable("w", [2])) * 0 + tf.cast(step, tf.float32)


def data(shard: int, shards: int) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(X)


PROGRAM = GraphProgram(loss=loss, train=data, predict=predict)


def sections(**update: Any) -> dict[str, Any]:
    """Of a job; `accumulate` is that of `train`."""
    train = {"steps": 1000, "batch_size": 2, "accumulate": update.pop("accumulate", 1)}
    return {"train": train, "update": update, "optimizer": {"name": "sgd", "learning_rate": 0.1}}


def front_of(fields: dict[str, Any], **functions: Any) -> tuple[FrontEnd, Job]:
    job = parse_job({"name": "a", "program": "p:b", **fields})
    return front_end(replace(PROGRAM, **functions), job, 1, 0), job


def summarized(session: Any, batch: list[np.ndarray]) -> float:
    [value] = v1.Summary.FromString(session.summaries(batch)).value
    return float(value.simple_value)


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_summaries_are_those_of_the_step_of_their_batch(mode: str, accumulate: int) -> None:
    fields = sections(mode=mode, accumulate=accumulate)
    front, _ = front_of(fields)
    batch = [X[: 2 * accumulate]]
    with graph_fleet(1, front, front.initial_values(), **fields) as fleet, fleet.worker(0) as worker:
        for number in range(2):
            made = worker.threads.submit(worker.session.train, batch, number, number)
            fleet.advance()
            assert made.result(STEP_SECS)[0] == number
            assert summarized(worker.session, batch) == number


def test_summaries_of_a_round_are_those_of_its_last_step() -> None:
    fields = sections(mode="averaging", local_steps=4)
    front, _ = front_of(fields)
    with graph_fleet(1, front, front.initial_values(), **fields) as fleet, fleet.worker(0) as worker:
        for number in range(3):
            assert worker.session.update_locally([X[:2]], number) == number
        assert summarized(worker.session, [X[:2]]) == 2


def of_own_variable(changes: bool, name: str = "global_step") -> Callable[[Any], tf.Tensor]:
    """A loss that is the program's own variable, which begins at 1000; whether the program itself changes it."""

    def loss(batch: Any) -> tf.Tensor:
        step = v1.get_variable(name, [], tf.int64, v1.constant_initializer(1000), trainable=False)
        if changes:
            v1.add_to_collection(v1.GraphKeys.UPDATE_OPS, step.assign_add(10))
        return tf.reduce_sum(batch * v1.get_variable("w", [2])) * 0 + tf.cast(step, tf.float32)

    return loss


@pytest.mark.parametrize(
    ("fields", "function", "expected"),
    [
        (sections(), loss, 300),
        (sections(accumulate=3), loss, 300),
        (sections(mode="averaging", local_steps=4), loss, 300),
        (sections(mode="async") | {"fleet": {"workers": 2, "spares": 1}}, loss, 100),
        (sections(), of_own_variable(changes=False), 1300),
        (sections(), of_own_variable(changes=True), 1000),
        (sections(), of_own_variable(changes=False, name="net/global_step"), 1000),
    ],
)
def test_an_evaluation_has_that_of_the_next_batch_on_its_weights(
    fields: dict[str, Any], function: Callable[[Any], tf.Tensor], expected: int
) -> None:
    """What a worker trains on these weights; a step that the program itself counts is a part of them."""
    front, job = front_of(fields, loss=function, evaluate=lambda: data(0, 1))
    evaluator = Evaluator(front, planned(front, job), job)
    assert evaluator.evaluate(front.initial_values(), 300) == {"loss": expected}


def saved(root: Path, layout: Layout, step: int, values: Mapping[str, np.ndarray]) -> Checkpoint:
    """A checkpoint of one ps without optimizer slots."""
    folder = checkpoint_folder(root, step, 1)
    vectors = [flat.pack(values) for flat in (layout.parameters, layout.state, layout.frozen)]
    content = ShardContent(vectors[0], {}, {}, *vectors[1:])
    part = write_part(folder, 0, layout, content, step, 1, "run")
    fields: dict[str, Any] = {"run": "run", "step": step, "generation": 1, "optimizer": "sgd", "slots": [], "extra": {}}
    return write_manifest(folder, layout, [part], **fields)


ROWS = X[:2]
EACH_HALF = sections(mode="async") | {"fleet": {"workers": 2}}
"""Each worker counts its own gradients."""


@pytest.mark.parametrize(("fields", "expected"), [(sections(), [200, 400]), (EACH_HALF, [100, 200])])
def test_predictions_have_that_of_their_weights(tmp_path: Path, fields: dict[str, Any], expected: list[float]) -> None:
    front, job = front_of(fields)
    layout, values = planned(front, job), front.initial_values()
    first, second = (of_checkpoint(saved(tmp_path, layout, step, values)) for step in (200, 400))
    model = predictor(PROGRAM, job, first, tf.TensorSpec([None, 2], tf.float32))
    found = model.predict([ROWS])["predictions"].tolist()
    model.assign(second)
    assert [found, model.predict([ROWS])["predictions"].tolist()] == [[each] * len(ROWS) for each in expected]


@pytest.mark.parametrize(("of_loss", "of_predict"), [("m", "m"), ("m", ""), ("", "m")])
def test_predictions_have_it_in_any_variable_scope(tmp_path: Path, of_loss: str, of_predict: str) -> None:
    def step(scope: str) -> tf.Tensor:
        with v1.variable_scope(scope):
            return tf.cast(v1.train.get_or_create_global_step(), tf.float32)

    program = replace(
        PROGRAM,
        loss=lambda batch: tf.reduce_sum(batch * v1.get_variable("w", [2])) * 0 + step(of_loss),
        predict=lambda features: tf.linalg.matvec(features, v1.get_variable("w", [2])) * 0 + step(of_predict),
    )
    front, job = front_of(sections(), loss=program.loss)
    weights = of_checkpoint(saved(tmp_path, planned(front, job), 200, front.initial_values()))
    model = predictor(program, job, weights, tf.TensorSpec([None, 2], tf.float32))
    assert model.predict([ROWS])["predictions"].tolist() == [200] * len(ROWS)


def test_a_constant_of_that_name_in_a_scope_is_not_the_global_step(tmp_path: Path) -> None:
    """Such as the counter of a network that was trained before."""
    read = of_own_variable(changes=False, name="net/global_step")
    program = replace(PROGRAM, loss=read, predict=lambda features: tf.reduce_sum(features, 1) * 0 + read(features))
    front, job = front_of(sections(), loss=read)
    weights = of_checkpoint(saved(tmp_path, planned(front, job), 200, front.initial_values()))
    model = predictor(program, job, weights, tf.TensorSpec([None, 2], tf.float32))
    assert model.predict([ROWS])["predictions"].tolist() == [1000] * len(ROWS)
    unknown = replace(program, predict=lambda features: of_own_variable(False, name="other/global_step")(features))
    with pytest.raises(BadJobError, match=r"other/global_step of shape .*, which is missing in the weights"):
        predictor(unknown, job, weights, tf.TensorSpec([None, 2], tf.float32))


def test_an_exported_model_has_that_of_its_checkpoint(tmp_path: Path) -> None:
    front, job = front_of(sections())
    checkpoint = saved(tmp_path, planned(front, job), 200, front.initial_values())
    graph_export.write(checkpoint, PROGRAM, job, tmp_path / "model", versions.SAVED_MODEL)
    loaded: Any = tf.saved_model.load(tmp_path / "model")
    found = loaded.signatures["serving_default"](inputs=tf.constant(ROWS))
    assert found["predictions"].numpy().tolist() == [200] * len(ROWS)


def test_predictions_and_exports_have_it_if_the_loss_reads_none(tmp_path: Path) -> None:
    """The weights have no variable for it then."""

    def plain(batch: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(batch * v1.get_variable("w", [2]))

    front, job = front_of(EACH_HALF, loss=plain)
    layout, values, program = planned(front, job), front.initial_values(), replace(PROGRAM, loss=plain)
    first, second = (saved(tmp_path, layout, step, values) for step in (200, 400))
    model = predictor(program, job, of_checkpoint(first), tf.TensorSpec([None, 2], tf.float32))
    found = model.predict([ROWS])["predictions"].tolist()
    model.assign(of_checkpoint(second))
    assert [found, model.predict([ROWS])["predictions"].tolist()] == [[100, 100], [200, 200]]
    graph_export.write(second, program, job, tmp_path / "model", versions.SAVED_MODEL)
    loaded: Any = tf.saved_model.load(tmp_path / "model")
    exported = loaded.signatures["serving_default"](inputs=tf.constant(ROWS))
    assert exported["predictions"].numpy().tolist() == [200, 200]


def test_predictions_of_a_trial_have_that_of_its_last_evaluation(tmp_path: Path) -> None:
    fields = sections() | {"train": {"steps": 3, "batch_size": 2}}
    _, job = front_of(fields)
    program = replace(PROGRAM, evaluate=lambda: data(0, 1))
    access = TrialAccess(study="s", socket="", metric="loss")
    stop: Any = SimpleNamespace(event=threading.Event())
    life: Any = SimpleNamespace(begin=lambda *_: None)
    trained = train(program, job, access, stop, lambda: None, lambda *_: None, life)
    assert trained.metrics == {"loss": 3}
    safetensors.numpy.save_file(trained.values, tmp_path / "trial.safetensors")
    model = predictor(
        program, job, of_trial(str(tmp_path / "trial.safetensors"), 3), tf.TensorSpec([None, 2], tf.float32)
    )
    assert model.predict([ROWS])["predictions"].tolist() == [3] * len(ROWS)
