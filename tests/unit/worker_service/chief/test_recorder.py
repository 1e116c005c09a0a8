"""What the chief records of its training, beside the loss."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support.chief_samples import sample_context, sample_job, sample_storage, scalars, shard_state

from psfleet.control import control_pb2 as pb
from psfleet.layout import Layout, TensorSpec
from psfleet.report.history import History, Point
from psfleet.report.pictures import pictures
from psfleet.report.schema import EvaluationLog
from worker_service.chief import ps_counts
from worker_service.chief import recorder as recorder_module
from worker_service.chief.recorder import Recorder
from worker_service.chief.run_attempt import Attempt

WAIT_SECS = 20.0
SCHEDULE = {"kind": "piecewise", "boundaries": [4], "factors": [1.0, 0.5]}


def recorder_of(out: Path, trained_secs: float = 0.0, **optimizer: Any) -> Recorder:
    """A recorder of a job whose learning rate is halved after update 5."""
    job = sample_job(
        optimizer={"name": "sgd", "learning_rate": 0.5, "schedule": SCHEDULE, **optimizer},
        summaries={"every_steps": 1},
    )
    context = sample_context(out, job=job)
    layout = Layout.plan([], [], [], 2, 4096)
    return Recorder(out, job, layout, None, sample_storage(context), trained_secs=trained_secs)


def train(recorder: Recorder, *steps: int, norm: float | None) -> list[Point]:
    """Ends steps whose progress is due; the points in the history."""
    session: Any = SimpleNamespace(summaries=lambda batch: None, gradient_norm=lambda: norm, measure_norm=bool)
    batch: Any = None
    for step in steps:
        recorder.start(step - 1)
        recorder._last = (float("-inf"), step - 1)
        recorder.step(session, batch, step, loss=0.5, secs=0.1)
    recorder.close()
    return History(recorder._history.path).read()


def test_a_point_has_the_learning_rate_of_its_update_and_the_norm_of_a_clipped_gradient(tmp_path: Path) -> None:
    points = train(recorder_of(tmp_path, clip_norm=5.0), 5, 6, norm=7.0)
    assert [(point.learning_rate, point.gradient_norm) for point in points] == [(0.5, 7.0), (0.25, 7.0)]
    found = scalars(tmp_path)
    assert (found["train/learning_rate"], found["train/gradient_norm"]) == ([0.5, 0.25], [7.0, 7.0])


def test_a_point_has_the_step_at_which_its_generation_began(tmp_path: Path) -> None:
    recorder = recorder_of(tmp_path)
    recorder.begin(2, 3)
    [point] = train(recorder, 5, norm=None)
    assert (point.generation, point.first_step) == (2, 3)


def test_an_evaluation_is_of_the_generation_in_which_its_weights_were_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ps is lost meanwhile, and the chief waits for the evaluation."""
    goes_on = threading.Event()
    monkeypatch.setattr(recorder_module, "local_values", lambda *_: {"weight": np.zeros(1)})
    job = sample_job(evaluate={"every_steps": 20}, summaries={"every_steps": 1000})
    storage = sample_storage(sample_context(tmp_path, job=job))
    recorder = Recorder(tmp_path, job, Layout.plan([], [], [], 2, 4096), None, storage)
    evaluator: Any = SimpleNamespace(evaluate=lambda tensors, step: {"loss": 0.5} if goes_on.wait(WAIT_SECS) else {})
    recorder._evaluation._evaluator = evaluator
    session: Any = SimpleNamespace(gradient_norm=lambda: None, measure_norm=bool)
    batch: Any = None
    recorder.begin(1, 10)
    recorder.start(19)
    recorder.step(session, batch, 20, loss=0.5, secs=0.1)
    recorder.begin(2, 15)
    goes_on.set()
    assert recorder.finish_evaluation(lambda: False)
    recorder.close()
    [evaluation] = EvaluationLog(tmp_path / EvaluationLog.FILE_NAME).read()
    assert (evaluation.step, evaluation.generation, evaluation.first_step) == (20, 1, 10)


def test_a_step_that_has_no_norm_is_recorded_without_it(tmp_path: Path) -> None:
    [point] = train(recorder_of(tmp_path), 5, norm=None)
    assert point.gradient_norm is None
    assert "train/gradient_norm" not in scalars(tmp_path)


def test_the_steps_that_will_be_recorded_compute_the_norm_of_their_gradient(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps take 0.101 s; a point is due after 0.5 s, summaries at steps 7 and 14, and both at the last step, 16."""
    job = sample_job(summaries={"every_steps": 7}, train={"steps": 16, "batch_size": 8})
    clock = SimpleNamespace(perf_counter=lambda: 0.0, time=time.time)
    monkeypatch.setattr(recorder_module, "time", clock)
    recorder = Recorder(tmp_path, job, Layout.plan([], [], [], 2, 4096), None, sample_storage(sample_context(tmp_path)))
    measured = [True]
    session: Any = SimpleNamespace(
        summaries=lambda batch: None, gradient_norm=lambda: None, measure_norm=measured.append
    )
    recorder.start(0)
    wanted = []
    batch: Any = None
    for step in range(1, 17):
        wanted += [step] if measured[-1] else []
        clock.perf_counter = lambda step=step: 0.101 * step
        recorder.step(session, batch, step, loss=0.5, secs=0.101)
    recorder.close()
    recorded = {point.step for point in History(tmp_path / History.FILE_NAME).read()} | {7, 14}
    assert recorded == {5, 7, 10, 14, 15, 16}
    assert wanted == [1, 3, 4, 5, 7, 8, 9, 10, 13, 14, 15, 16], "up to two steps before one that could be recorded"


def test_gradients_are_written_as_histograms_by_name(tmp_path: Path) -> None:
    job = sample_job(summaries={"every_steps": 2, "gradient_histograms": True})
    layout = Layout.plan([TensorSpec("w", (2, 2)), TensorSpec("b", (2,))], [], [], 2, 4096)
    recorder = Recorder(tmp_path, job, layout, None, sample_storage(sample_context(tmp_path, job=job)))
    gradients = [np.array([-1.0, 0.0, 1.0, 3.0], np.float32), np.array([0.5, 0.5], np.float32)]
    session: Any = SimpleNamespace(
        summaries=lambda batch: None, gradients=lambda: gradients, gradient_norm=lambda: None, measure_norm=bool
    )
    batch: Any = None
    recorder.start(0)
    for step in (1, 2, 3, 4):
        recorder.step(session, batch, step, loss=0.5, secs=0.1)
    recorder.close()
    found = {
        (value.tag, event.step): tf.make_ndarray(value.tensor)
        for path in (tmp_path / "tensorboard").iterdir()
        for event in tf.compat.v1.train.summary_iterator(str(path))
        for value in event.summary.value
        if value.tag.startswith("gradient/")
    }
    assert found.keys() == {(f"gradient/{name}", step) for name in "wb" for step in (2, 4)}
    buckets = found["gradient/w", 2]
    assert (buckets[0, 0], buckets[-1, 1], buckets[:, 2].sum()) == (-1.0, 3.0, 4.0)


def test_the_report_has_the_throughput_of_each_worker_that_was_measured(tmp_path: Path) -> None:
    """Worker 0 pushes 2 gradients of 8 examples per second; worker 1 has pushed only one."""
    now = 0.0
    recorder = recorder_of(tmp_path)
    recorder.worker_rates._clock = lambda: now
    state = shard_state(20)
    state.pushed[:], state.used[:] = [21, 1], [20, 0]
    state.workers.extend(pb.WorkerState(index=index, process=str(index), pushed=1) for index in range(2))
    recorder.worker_rates.update([state])
    now, state.workers[0].pushed = 10.0, 21
    recorder.worker_rates.update([state])
    found = ps_counts.gradients_of([state], recorder.worker_examples_per_sec()).per_worker
    assert found["0"].examples_per_sec == pytest.approx(16.0)
    assert found["1"].examples_per_sec is None


def test_of_several_losses_the_newest_of_each_is_recorded_and_so_is_the_rate_of_each(tmp_path: Path) -> None:
    rules = {"critic": {"name": "sgd", "learning_rate": 0.5}, "actor": {"name": "sgd", "learning_rate": 0.25}}
    job = sample_job(
        optimizer=None,
        optimizers=rules,
        train={"steps": 100, "batch_size": 8, "alternate": ["critic", "actor"]},
        summaries={"every_steps": 1},
    )
    storage = sample_storage(sample_context(tmp_path, job=job))
    recorder = Recorder(tmp_path, job, Layout.plan([], [], [], 2, 4096), None, storage)
    losses: dict[str, float] = {}
    session: Any = SimpleNamespace(
        summaries=lambda batch: None, gradient_norm=lambda: None, measure_norm=bool, losses=losses
    )
    batch: Any = None
    for step, (name, loss) in enumerate([("critic", 1.5), ("actor", 0.75), ("critic", 1.25)], 1):
        losses[name] = loss
        recorder.start(step - 1)
        recorder._last = (float("-inf"), step - 1)
        recorder.step(session, batch, step, loss=loss, secs=0.1)
    recorder.close()
    points = History(tmp_path / History.FILE_NAME).read()
    assert [point.losses for point in points] == [
        {"critic": 1.5},
        {"critic": 1.5, "actor": 0.75},
        {"critic": 1.25, "actor": 0.75},
    ]
    assert recorder.losses == points[-1].losses
    assert [point.learning_rate for point in points] == [None] * 3
    found = scalars(tmp_path)
    assert (found["train/critic_loss"], found["train/actor_loss"]) == ([1.5, 1.5, 1.25], [0.75, 0.75])
    assert (found["train/learning_rate/critic"], found["train/learning_rate/actor"]) == ([0.5] * 3, [0.25] * 3)


def test_image_summaries_of_the_program_become_pictures(tmp_path: Path) -> None:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        tf.compat.v1.summary.image("made", np.zeros([1, 4, 4, 1], np.float32), max_outputs=1)
        tf.compat.v1.summary.scalar("other", 1.0)
        own = session.run(tf.compat.v1.summary.merge_all())
    recorder = recorder_of(tmp_path)
    training: Any = SimpleNamespace(summaries=lambda batch: own, gradient_norm=lambda: None, measure_norm=bool)
    batch: Any = None
    recorder.start(0)
    recorder.step(training, batch, 1, loss=0.5, secs=0.1)
    recorder.close()
    [(tag, [picture])] = pictures(tmp_path).items()
    assert (tag, picture.step) == ("made", 1)
    assert tf.io.decode_png(picture.path.read_bytes()).shape == (4, 4, 1)


def test_the_time_of_training_continues_over_a_restart_of_the_chief_and_begins_anew_with_an_attempt(
    tmp_path: Path,
) -> None:
    began = time.time()
    train(recorder_of(tmp_path), 1, 2, norm=None)
    attempt = Attempt(tmp_path, began, "chief")
    assert attempt.trained_secs() == pytest.approx(0.2)
    restarted = recorder_of(tmp_path, trained_secs=attempt.trained_secs())
    points = train(restarted, 3, norm=None)
    assert [point.training_seconds for point in points] == pytest.approx([0.1, 0.2, 0.3])
    assert restarted.training_secs == pytest.approx(0.3)
    assert restarted.examples_per_sec() == pytest.approx(restarted._examples(1) / 0.1), "of its own steps and time"
    assert Attempt(tmp_path, time.time() + 1, "chief").trained_secs() == 0.0, "it starts now"
    assert Attempt(tmp_path / "none", began, "chief").trained_secs() == 0.0
