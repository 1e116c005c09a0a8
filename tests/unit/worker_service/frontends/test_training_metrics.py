"""Training metrics are those that Keras computes over the batches of all workers of the quorum."""

from __future__ import annotations

import functools
import logging
from contextlib import ExitStack
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from support.graph_fleet import graph_fleet
from support.program_samples import Stepper
from support.rows import first_rows

from psfleet.checkpoint.tensors import check_tensors
from psfleet.job.job import Job, parse_job
from psfleet.job.program import KerasProgram
from psfleet.layout import Layout
from psfleet.tf.program_data import built_model
from worker_service.frontends import FrontEnd, front_end

BATCH, WORKERS, STEPS, EVERY = 4, 2, 7, 5
generator = np.random.default_rng(5)
X = generator.normal(size=(STEPS, WORKERS, BATCH, 3)).astype(np.float32)
Y = (generator.random(size=(STEPS, WORKERS, BATCH, 1)) > 0.4).astype(np.float32)
WEIGHTS = generator.random(size=(STEPS, WORKERS, BATCH)).astype(np.float32)


class Largest(keras.metrics.Metric):
    """No sum: two workers' largest predictions do not add up."""

    def __init__(self) -> None:
        super().__init__(name="largest")
        self.value = self.add_weight(shape=(), initializer="zeros")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.value.assign(tf.maximum(self.value, tf.reduce_max(y_pred)))

    def result(self) -> Any:
        return self.value.value


class OwnLoss(keras.Model):
    """Computes its loss as in Keras' guide: its `metrics` leave out those of `compile`, and so does its `fit`."""

    def __init__(self) -> None:
        super().__init__()
        self.dense, self.tracker = layers.Dense(1, "sigmoid"), keras.metrics.Mean(name="own_loss")

    def call(self, x: Any) -> Any:
        return self.dense(x)

    def compute_loss(self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None) -> Any:
        loss = keras.ops.mean(keras.ops.square(y - y_pred))
        self.tracker.update_state(loss)
        return loss

    @property
    def metrics(self) -> list[Any]:
        return [self.tracker]


def model() -> keras.Model:
    return keras.Sequential([keras.Input((3,)), layers.Dense(4, "tanh"), layers.Dense(1, "sigmoid")])


def metrics() -> list[Any]:
    return ["accuracy", keras.metrics.AUC(num_thresholds=20), keras.metrics.Precision(), keras.metrics.F1Score()]


def program_of(**fields: Any) -> KerasProgram:
    examples = (X.reshape(-1, 3), Y.reshape(-1, 1), WEIGHTS.reshape(-1))
    data = tf.data.Dataset.from_tensor_slices(examples)
    defaults = {"model": model, "loss": "binary_crossentropy", "train": lambda shard, shards: data}
    return KerasProgram(**{**defaults, "metrics": metrics(), "weighted_metrics": ["accuracy", "mse"], **fields})


def job_of(**sections: Any) -> Job:
    fields = {"name": "sample", "program": "program:build", "optimizer": {"name": "sgd", "learning_rate": 0.1}}
    fields |= {"train": {"steps": 20, "batch_size": BATCH}, "fleet": {"workers": WORKERS}}
    return parse_job({**fields, "summaries": {"every_steps": EVERY}, **sections})


def front_of(index: int = 0, job: Job | None = None, **fields: Any) -> FrontEnd:
    return front_end(program_of(**fields), job or job_of(), WORKERS, index)


@functools.cache
def all_steppers() -> list[Stepper]:
    return [Stepper.of(front_of(index)) for index in range(WORKERS)]


def stepped(steps: int) -> dict[str, np.ndarray]:
    """The values after so many steps of all workers, without updates of the weights."""
    steppers = all_steppers()
    values = steppers[0].front.initial_values()
    for step in range(steps):
        states = []
        for index, stepper in enumerate(steppers):
            batch = (X[step, index], Y[step, index], WEIGHTS[step, index])
            states.append(stepper.run(stepper.graph.new_state, batch, values, step))
        for number, spec in enumerate(steppers[0].front.state):
            values[spec.name] = np.mean([state[number] for state in states], axis=0)
    return {**values, "metrics": steppers[0].front.training_metrics(values)}  # type: ignore[dict-item]


def of_keras(first: int, stop: int) -> dict[str, float]:
    """The metrics over all batches of some steps, as Keras evaluates them with the initial weights."""
    program = program_of()
    built = built_model(program, job_of())
    of_compile = {"metrics": program.metrics, "weighted_metrics": program.weighted_metrics}
    built.compile(loss=program.loss, run_eagerly=True, **of_compile)
    x, y, weight = (array[first:stop].reshape(-1, *array.shape[3:]) for array in (X, Y, WEIGHTS))
    found: dict[str, Any] = built.evaluate(x, y, sample_weight=weight, batch_size=BATCH, return_dict=True, verbose=0)
    return {name: float(value) for name, value in found.items() if np.shape(value) == ()}


@pytest.mark.parametrize(("steps", "first"), first_rows([(STEPS, EVERY), (EVERY, 0)]))
def test_metrics_are_those_of_keras_over_the_batches_of_all_workers(steps: int, first: int) -> None:
    """They begin anew at each multiple of `summaries.every_steps`."""
    found: Any = stepped(steps)["metrics"]
    expected = of_keras(first, steps)
    expected["mean_loss"] = expected.pop("loss")
    assert found == pytest.approx(expected, abs=1e-5)
    assert len(found) >= 6


def test_a_sum_is_that_of_all_workers_although_the_ps_hold_means() -> None:
    front = front_of(metrics=[keras.metrics.TruePositives()], weighted_metrics=None)
    twos = {spec.name: np.full(spec.shape, 2.0, np.float32) for spec in front.state}
    assert front.training_metrics(twos) == {"mean_loss": 1.0, "true_positives": 2.0 * WORKERS}


def test_no_checkpoint_holds_metrics_and_a_program_may_change_them() -> None:
    with_metrics, without = front_of(), front_of(metrics=None, weighted_metrics=None)
    assert without.state == ()
    layouts = [Layout.plan(front.parameters, front.state, front.frozen, 2, 4096) for front in (with_metrics, without)]
    assert layouts[0].digest() != layouts[1].digest()
    assert layouts[0].saved == layouts[1]
    assert Layout.from_dict(layouts[0].to_dict()) == layouts[0]

    class Checkpoint:
        folder, layout = "folder", layouts[1]

    checkpoint: Any = Checkpoint()
    check_tensors(checkpoint, layouts[0])


def test_a_metric_that_need_not_add_up_leaves_out_training_metrics(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "psfleet.worker"):
        front = front_of(metrics=[Largest()])
    assert front.state == ()
    assert front.training_metrics({}) == {}
    assert "metric largest is a Largest, expected a class of keras.metrics" in caplog.text


def test_a_model_may_list_its_own_metrics_only() -> None:
    front = front_of(model=OwnLoss)
    stepper = Stepper.of(front)
    loss, state = stepper.run([stepper.graph.loss, stepper.graph.new_state], (X[0, 0], Y[0, 0], WEIGHTS[0, 0]))
    values = {spec.name: value / WORKERS for spec, value in zip(front.state, state, strict=True)}
    assert front.training_metrics(values) == {"own_loss": pytest.approx(float(loss))}


@pytest.mark.parametrize("update", [{"mode": "async"}, {"mode": "ssp", "bound": 1}], ids=["async", "ssp"])
def test_modes_in_which_state_is_no_mean_over_workers_collect_none(update: dict[str, Any]) -> None:
    assert front_of(job=job_of(update=update)).state == ()


def test_in_averaging_mode_metrics_are_over_the_batches_of_all_steps_of_whole_rounds() -> None:
    """The weights are zeros and stay so: every prediction is 0.5 and counts as 0."""
    local_steps, rounds = 3, 3
    sections: dict[str, Any] = {
        "update": {"mode": "averaging", "local_steps": local_steps, "quorum": WORKERS},
        "optimizer": {"name": "sgd", "learning_rate": 1e-30},
        "train": {"steps": 21, "batch_size": BATCH},
        "summaries": {"every_steps": EVERY},
    }
    front = front_of(job=job_of(**sections), metrics=["accuracy"])
    found = []
    with graph_fleet(2, front, fleet={"workers": WORKERS}, **sections) as fleet, ExitStack() as stack:
        workers = [stack.enter_context(fleet.worker(index)) for index in range(WORKERS)]
        for start in range(0, rounds * local_steps, local_steps):
            for index, worker in enumerate(workers):
                for number in range(start, start + local_steps):
                    at = number % STEPS
                    worker.session.update_locally((X[at, index], Y[at, index], WEIGHTS[at, index]), number)
            ends = [worker.threads.submit(worker.session.exchange, start) for worker in workers]
            fleet.advance()
            for end in ends:
                end.result(30)
            found.append(front.training_metrics(fleet.layout.state.unpack(workers[0].session.state()))["accuracy"])
    # They begin anew with the first round after `summaries.every_steps`.
    of_rounds = [range(3), range(6), range(6, 9)]
    expected = [np.mean([Y[number % STEPS, ..., 0] == 0 for number in of_round]) for of_round in of_rounds]
    assert found == pytest.approx(expected, abs=1e-6)


@pytest.mark.extended
def test_the_chief_reads_the_metrics_of_a_whole_step_with_its_parameters() -> None:
    """In a fleet: the weights are zeros, so every prediction is 0.5 and counts as 0."""
    job = job_of()
    front = front_of(job=job, metrics=["accuracy"])
    sections = {"summaries": {"every_steps": EVERY}, "train": {"steps": 20, "batch_size": BATCH}}
    fleet_of = graph_fleet(2, front, fleet={"workers": WORKERS}, update={"quorum": WORKERS}, **sections)
    with fleet_of as fleet, ExitStack() as stack:
        workers = [stack.enter_context(fleet.worker(index)) for index in range(WORKERS)]
        steps = [
            worker.threads.submit(worker.session.train, (X[0, index], Y[0, index], WEIGHTS[0, index]), 0, 0)
            for index, worker in enumerate(workers)
        ]
        fleet.advance()
        for step in steps:
            step.result(30)
        state = workers[0].session.state()
        found = front.training_metrics(fleet.layout.state.unpack(state))
    is_zero = Y[0, ..., 0] == 0
    assert found["accuracy"] == pytest.approx(is_zero.mean(), abs=1e-6)
    assert found["weighted_accuracy"] == pytest.approx(WEIGHTS[0][is_zero].sum() / WEIGHTS[0].sum(), abs=1e-6)


@pytest.mark.extended
def test_a_session_tells_whether_total_and_count_of_a_metric_may_be_of_different_steps() -> None:
    """With spares a late chief can pull two shards when one of them has made an update more."""
    with graph_fleet(2, fleet={"workers": 1, "spares": 1}) as fleet, fleet.worker(0) as chief, fleet.worker(1) as other:
        own = chief.push(1.0, 0)
        fleet.advance()
        own.result(30)
        assert chief.session.is_of_one_step
        first = other.push(1.0, 0)
        first.result(30)
        second = other.push(1.0, 1)
        fleet.wait_for_size("gradients", 1)
        fleet.advance(0)
        chief.push(1.0, 0).result(30)
        assert not chief.session.is_of_one_step
        fleet.advance(1)
        second.result(30)
        assert other.session.is_of_one_step
