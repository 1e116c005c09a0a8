"""The benchmark that trains LeNet-5 on MNIST until it has an accuracy: its data, its model and its clock."""

from __future__ import annotations

import argparse
import importlib.util
import math
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf
from support.mnist_files import mnist_files, write_files

from benchmarks import contenders, stock, time_to_accuracy, training_graph
from benchmarks.children import ChildError
from benchmarks.contenders import reached
from benchmarks.cpu_time import CpuTime
from benchmarks.digits import lenet
from benchmarks.digits.data import READER, Shard, evaluation_batches, reader
from benchmarks.peers import ps_strategy
from benchmarks.timing import Reached, timed
from benchmarks.workload import Workload
from psfleet.job.job import load_job
from psfleet.report.history import History, Point
from psfleet.report.schema import Evaluation, EvaluationLog

NUM_TRAINING, NUM_TEST = 50, 30


@pytest.fixture
def workload(tmp_path: Path) -> Workload:
    """Batches of 4 of some random images: 25 for each of two workers."""
    folder = write_files(tmp_path, mnist_files(NUM_TRAINING, NUM_TEST))
    return Workload(
        0, "adam", steps=40, warmup_steps=3, batch_size=4, mnist=folder, accuracy=0.9, evaluate_steps=10
    )  # fmt: skip


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The program of examples/lenet."""
    monkeypatch.setitem(sys.modules, "digits", reader())
    spec = importlib.util.spec_from_file_location("lenet_program", READER.parent / "program.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def keys(batch: tuple[np.ndarray, np.ndarray]) -> set[bytes]:
    return {image.tobytes() for image in batch[0]}


def test_an_epoch_of_a_worker_has_each_of_its_images_at_most_once(workload: Workload) -> None:
    training, _ = reader().read_mnist(workload.mnist)
    own = [{image.tobytes() for image in training.shard(index, 2).pixels} for index in range(2)]
    for index in range(2):
        shard = Shard(workload, index)
        epochs = [[shard.batch(6 * epoch + place) for place in range(6)] for epoch in range(2)]
        for epoch in epochs:
            found = set().union(*map(keys, epoch))
            assert len(found) == 24
            assert found <= own[index]
        assert not np.array_equal(epochs[0][0][0], epochs[1][0][0])


def test_batches_have_the_labels_of_their_images_and_follow_the_seed(workload: Workload) -> None:
    training, _ = reader().read_mnist(workload.mnist)
    labels = {image.tobytes(): label for image, label in zip(training.pixels, training.labels, strict=True)}
    first, again = Shard(workload, 0).batch(7), Shard(workload, 0).batch(7)
    other = Shard(replace(workload, seed=2), 0).batch(7)
    assert [labels[image.tobytes()] for image in first[0]] == first[1].tolist()
    assert np.array_equal(first[0], again[0])
    assert not np.array_equal(first[0], other[0])


def test_all_test_images_are_evaluated(workload: Workload, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.digits.data.TEST_BATCH", 8)
    assert [len(labels) for _, labels in evaluation_batches(workload.mnist)] == [8, 8, 8, 6]


def test_the_model_is_that_of_the_example(example: ModuleType) -> None:
    model = example.lenet()
    weights = lenet.initial(seed=3)
    assert [each.shape for each in weights] == [each.shape for each in model.weights] == list(lenet.SHAPES)
    assert sum(math.prod(shape) for shape in lenet.SHAPES) == 431_080
    model.set_weights(weights)
    pixels = np.random.default_rng(4).integers(256, size=(5, 28, 28), dtype=np.uint8)
    expected = keras.ops.convert_to_numpy(model(np.float32(pixels)[..., np.newaxis] / 255, training=False))
    np.testing.assert_allclose(lenet.logits(weights, tf.constant(pixels), trains=False), expected, atol=1e-4)


def test_the_accuracy_is_the_share_of_test_images(workload: Workload, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.digits.data.TEST_BATCH", 8)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        loss, feed = training_graph.fed_loss(workload, 1)
        train = training_graph.new_optimizer(workload).minimize(loss)
        accuracy = training_graph.accuracy(workload)
        variables = tf.compat.v1.trainable_variables()
        session.run(tf.compat.v1.global_variables_initializer())
        for step in range(3):
            session.run(train, feed(step))
        weights = session.run(variables)
        found = accuracy(session.run)
    _, test = reader().read_mnist(workload.mnist)
    outputs = lenet.logits(weights, tf.constant(test.pixels), trains=False)
    right = np.argmax(outputs, 1) == test.labels
    assert len(variables) == len(lenet.SHAPES)
    assert found == pytest.approx(np.mean(right))


def test_training_ends_with_the_first_evaluation_that_has_the_accuracy(workload: Workload) -> None:
    events = []

    def step(number: int) -> int:
        events.append((number, time.time()))
        # As of a fleet whose step is that of the model, which other workers train, too.
        return 2 * (number + 1)

    accuracies = iter([0.5, 0.85, 0.9, 1.0])
    found = timed(step, lambda: next(accuracies), workload)
    assert (found.steps, found.accuracy) == (30, 0.9)
    assert [number for number, _ in events] == list(range(15))
    # The warm-up is over with the second call, after which the model has four steps.
    assert events[1][1] <= found.began <= events[2][1] <= found.ended


def test_training_gives_up_after_the_last_step(workload: Workload) -> None:
    found = timed(lambda number: number + 1, lambda: 0.1, workload)
    assert (found.steps, found.accuracy) == (40, 0.1)
    with pytest.raises(ChildError, match=r"accuracy 0\.1000 after 40 steps"):
        reached(vars(found), CpuTime(lambda: []), workload)


def test_the_mean_step_is_of_those_after_the_warmup(workload: Workload) -> None:
    cpu = CpuTime(lambda: [])
    cpu._samples = [(100.0, 1.0), (110.0, 6.0)]
    found = {"steps": 23, "accuracy": 0.95, "began": 102.0, "ended": 106.0}
    assert reached(found, cpu, workload) == {"secs": 4.0, "steps": 23, "mean_ms": 200.0, "cpu_secs": 2.0}
    with pytest.raises(ChildError, match="no sample of CPU time"):
        reached(found | {"began": 90.0}, cpu, workload)


def test_times_to_an_accuracy_are_those_of_the_first_worker(workload: Workload) -> None:
    now = time.time()
    lines = {0: {"steps": 13, "accuracy": 0.9, "began": now - 2, "ended": now - 1}}
    children = SimpleNamespace(receive=lambda worker, what, secs: lines[worker])
    cpu = CpuTime(lambda: [])
    cpu._samples = [(now - 5, 0.0)]
    assert contenders.measured(children, [0, 1], cpu, workload, gradients=2)["mean_ms"] == pytest.approx(100.0)


def test_only_the_chief_of_stock_evaluates(workload: Workload) -> None:
    cluster = {"ps": ["127.0.0.1:1"], "worker": ["127.0.0.1:2", "127.0.0.1:3"]}
    for index, num_evaluations in ((0, 1), (1, 0)):
        calls = []
        with tf.Graph().as_default():
            *_, measure = stock.build(cluster, index, workload)
        assert measure(lambda tensor, feed, calls=calls: calls.append(tensor) or 3) == num_evaluations * 0.1
        assert len(calls) == num_evaluations


def run_folder(folder: Path, *evaluations: tuple[int, float], generation: int = 1) -> Path:
    history = History(folder / History.FILE_NAME)
    for moment, step in ((100.0, 1), (101.0, 5)):
        history.append(
            Point(time=moment, step=step, generation=generation, loss=1.0, step_secs=0.5, examples_per_sec=1.0)
        )
    log = EvaluationLog(folder / EvaluationLog.FILE_NAME)
    for step, accuracy in evaluations:
        metrics = {"accuracy": accuracy, "loss": 1.0}
        log.append(Evaluation(time=100.0 + step, step=step, generation=generation, secs=0.1, metrics=metrics))
    return folder


def child(code: int | None) -> SimpleNamespace:
    return SimpleNamespace(process=SimpleNamespace(poll=lambda: code, returncode=code), tail=lambda: "its log")


def test_psfleet_has_reached_the_accuracy_with_its_first_such_evaluation(tmp_path: Path, workload: Workload) -> None:
    out = run_folder(tmp_path, (10, 0.5), (20, 0.95), (30, 0.99))
    assert time_to_accuracy.newest_evaluation(out, child(None), workload) == Reached(20, 0.95, 100.5, 120.0)


def test_psfleet_has_not_reached_the_accuracy_while_it_trains(tmp_path: Path, workload: Workload) -> None:
    assert time_to_accuracy.newest_evaluation(tmp_path, child(None), workload) is None
    out = run_folder(tmp_path, (10, 0.5))
    assert time_to_accuracy.newest_evaluation(out, child(None), workload) is None
    ended = time_to_accuracy.newest_evaluation(out, child(0), workload)
    assert ended is not None
    assert ended.accuracy == 0.5


def test_psfleet_that_ends_without_an_evaluation_is_an_error(tmp_path: Path, workload: Workload) -> None:
    with pytest.raises(ChildError, match="exit code 70\nits log"):
        time_to_accuracy.newest_evaluation(tmp_path, child(70), workload)


@pytest.mark.parametrize(("code", "generation", "message"), [(70, 1, "exit code 70\nits log"), (0, 2, "a ps was lost")])
def test_psfleet_that_fails_or_begins_again_is_an_error(
    tmp_path: Path, workload: Workload, code: int, generation: int, message: str
) -> None:
    out = run_folder(tmp_path, (10, 0.8), generation=generation)
    with pytest.raises(ChildError, match=message):
        time_to_accuracy.newest_evaluation(out, child(code), workload)


def test_a_history_that_begins_after_the_warmup_has_no_time_for_it(tmp_path: Path) -> None:
    points = History(run_folder(tmp_path) / History.FILE_NAME).curve()
    for step in (1, 6):
        with pytest.raises(ChildError, match=f"before and after step {step}"):
            time_to_accuracy.time_of(step, points)


def test_the_settings_are_those_of_the_workload(workload: Workload) -> None:
    job = load_job(time_to_accuracy.JOB, time_to_accuracy.settings(replace(workload, mnist="/a folder")))
    assert (job.options, job.train.steps, job.train.batch_size) == ({"data_dir": "/a folder"}, 40, 4)
    assert (job.fleet.ps, job.fleet.workers, job.fleet.spares, job.evaluate.every_steps) == (1, 2, 0, 10)


def test_lenet_of_parameter_server_strategy_learns(workload: Workload) -> None:
    model = ps_strategy.Lenet(workload)
    batch = next(iter(model.batches()))
    losses = [float(model.train(*batch)) for _ in range(30)]
    assert losses[-1] < losses[0] / 2
    assert 0 <= model.accuracy() <= 1


@pytest.mark.parametrize("text", ["98.8", "0", "-1", "many"])
def test_an_accuracy_is_a_share(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--accuracy", type=time_to_accuracy.share)
    with pytest.raises(SystemExit):
        parser.parse_args(["--accuracy", text])
    assert text in capsys.readouterr().err
    assert parser.parse_args(["--accuracy", "1"]).accuracy == 1.0


def test_each_run_has_a_seed_of_its_own(workload: Workload) -> None:
    seeds = []
    train = time_to_accuracy.seeded(lambda one: seeds.append(one.seed) or {}, workload)
    for _ in range(3):
        train()
    assert len(set(seeds)) == 3


def test_the_comparisons_name_contenders(workload: Workload) -> None:
    plan = time_to_accuracy.plan(workload)
    names = {each.name for each in plan.contenders}
    assert {name for each in plan.group.comparisons for name in (each.contender, each.other)} <= names
