"""What the check of a program finds without a fleet."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from psfleet.errors import BadJobError, DataStallError, ProgramError
from psfleet.job.job import Job, parse_job
from psfleet.report.verdict import Verdict
from worker_service import validation

PROGRAM = """\
import keras
import numpy as np
import tensorflow as tf
import psfleet

x = np.arange(64, dtype=np.float32).reshape(32, 2) / 64

def loss(batch):
    return tf.reduce_mean(tf.square(tf.linalg.matvec(batch, tf.compat.v1.get_variable("w", [2]))))

def data(shard, shards):
    return tf.data.Dataset.from_tensor_slices(x).shard(shards, shard)

def graph(**fields):
    return psfleet.GraphProgram(**{"loss": loss, "train": data, "evaluate": lambda: data(0, 1), **fields})

def sequences(shard, shards):
    made = lambda: ([1.0] * (at % 8 + 1) for at in range(32))
    return tf.data.Dataset.from_generator(made, output_signature=tf.TensorSpec([None])).shard(shards, shard)

def mean(batch):
    return tf.reduce_mean(batch * tf.compat.v1.get_variable("w", []))

def labelled(labels):
    return lambda *shard: tf.data.Dataset.from_tensor_slices((x, np.asarray(labels)))

def classes(**fields):
    layers = [keras.Input([2]), keras.layers.BatchNormalization(), keras.layers.Dense(3)]
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    given = {"model": lambda: keras.Sequential(layers), "train": labelled([1] * 32), "evaluate": labelled([1] * 32)}
    return psfleet.KerasProgram(**{**given, "loss": loss, "metrics": ["accuracy"], **fields})

"""

Check = Callable[..., str]


@pytest.fixture
def check(tmp_path: Path) -> Check:
    """Checks the program that an expression of `PROGRAM`'s names makes, for a worker and a spare."""

    def run(expression: str, **changes: Any) -> str:
        (tmp_path / "program.py").write_text(f"{PROGRAM}def build():\n    print('built')\n    return {expression}\n")
        return validation.check(job(**changes), tmp_path)

    return run


def job(**changes: Any) -> Job:
    return parse_job(
        {
            "name": "tiny",
            "program": "program:build",
            "fleet": {"ps": 2, "workers": 1, "spares": 1},
            "optimizer": {"name": "sgd", "learning_rate": 0.1},
            "train": {"steps": 2, "batch_size": 4},
            **changes,
        }
    )


@pytest.mark.parametrize(
    ("expression", "found"),
    [
        ("graph()", r"GraphProgram tiny: 2 parameters in 1 tensor, 2 x 64 bytes; loss of the first batch \d"),
        ("classes()", r"KerasProgram tiny: 13 parameters in 4 tensors, 2 x \d+ bytes; loss of the first batch \d"),
        ("graph(evaluate=None)", "GraphProgram tiny: "),
    ],
)
def test_a_program_that_can_be_trained_is_described(check: Check, expression: str, found: str) -> None:
    assert re.match(found, check(expression))


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("classes(train=labelled([7] * 32))", "Received a label value of 7 which is outside the valid range"),
        ("classes(train=labelled([1] * 32), evaluate=labelled([[1, 2]] * 32))", "evaluating the model raised"),
        ("classes(evaluate=labelled([7] * 32))", "evaluating the model raised .*: Received a label value of 7 which"),
        ("graph(loss=lambda batch: loss(batch) / 0.0)", r"the first batch: the loss is (NaN|infinite)"),
        ("graph(train=lambda shard, shards: data(shard, shards).take(3))", "shard 0 of 2 has fewer examples than"),
        ("graph(evaluate=lambda: data(0, 1).repeat())", "the evaluation data are endless"),
        ("graph(loss=lambda batch: tf.linalg.matvec(batch, tf.ones([3])))", "Dimensions must be equal"),
    ],
)
def test_a_program_that_cannot_be_trained_is_refused_in_one_line(check: Check, expression: str, message: str) -> None:
    with pytest.raises(ProgramError, match=message) as caught:
        check(expression)
    assert "\n" not in str(caught.value)


def test_a_watched_metric_that_the_program_does_not_have_is_refused_before_training(check: Check) -> None:
    watching = {"every_steps": 1, "stop": {"metric": "acc", "patience": 1}}
    with pytest.raises(BadJobError, match=r"evaluate\.stop\.metric is 'acc', .*: accuracy, loss$"):
        check("classes()", evaluate=watching)


def test_an_optimizer_of_the_program_may_be_applied(check: Check) -> None:
    expression = "graph(optimizer=keras.optimizers.Nadam())"
    assert check(expression, optimizer={"name": "program"}).startswith("GraphProgram tiny: ")


def test_an_optimizer_that_no_ps_can_apply_is_refused_before_training(check: Check) -> None:
    with pytest.raises(ProgramError, match="optimizer Lamb is not elementwise: its update has the operation Sum"):
        check("classes(optimizer=keras.optimizers.Lamb())", optimizer={"name": "program"})


def test_a_job_cannot_apply_an_optimizer_that_the_program_does_not_have(check: Check) -> None:
    with pytest.raises(BadJobError, match=r"optimizer\.name is program, but .* has no optimizer; expected a GraphPro"):
        check("graph()", optimizer={"name": "program"})


def test_a_check_does_not_print_the_devices_of_operations(check: Check, capfd: pytest.CaptureFixture[str]) -> None:
    check("graph()", device={"log_placement": True})
    captured = capfd.readouterr()
    assert "device:CPU:0" not in captured.out + captured.err


def test_a_loss_that_is_a_sum_over_the_batch_is_refused_with_towers(check: Check) -> None:
    total = "graph(loss=lambda batch: 4 * loss(batch) * tf.cast(tf.shape(batch)[0], tf.float32))"
    message = (
        r"loss\(batch\) of the first batch is \S+, the sum of those of its 2 parts, expected their mean with device"
    )
    with pytest.raises(ProgramError, match=message):
        check(total, device={"replicas": 2})
    check(total)


def test_a_loss_that_is_a_mean_over_the_batch_is_accepted_with_towers(check: Check) -> None:
    assert "loss of the first batch" in check("graph()", device={"replicas": 2})


def test_the_verdict_is_in_a_file(check: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check("graph()")
    verdict = tmp_path / "verdict.json"
    monkeypatch.setattr(sys, "stdin", io.StringIO(job().model_dump_json()))
    monkeypatch.setattr(sys, "argv", ["validation", str(tmp_path), str(verdict)])
    validation.main()
    assert Verdict.model_validate_json(verdict.read_bytes()).summary_or_raise().startswith("GraphProgram tiny: ")


def test_a_refusal_is_a_verdict_with_the_exit_code_of_its_error() -> None:
    verdict = Verdict.of_error(DataStallError("the data set", 5))
    with pytest.raises(ProgramError, match="gave up after 5 s waiting for the data set") as caught:
        Verdict.model_validate_json(verdict.model_dump_json()).summary_or_raise()
    assert caught.value.exit_code == DataStallError.exit_code


def test_data_that_preload_cannot_keep_are_found(check: Check) -> None:
    expression = "graph(train=lambda *shard: data(*shard).shuffle(4))"
    with pytest.raises(ProgramError, match=r"the training data of shard 0 are random, and input\.from: preload"):
        check(expression, input={"from": "preload"})
    assert check(expression)


def test_data_that_a_loader_cannot_read_are_found(check: Check) -> None:
    expression = "graph(loss=mean, train=sequences, evaluate=None)"
    with pytest.raises(ProgramError, match="shard 0: the data set calls Python"):
        check(expression, input={"from": "loaders", "pad": True})
    assert check(expression, input={"pad": True})


def test_data_that_a_loader_can_read_are_accepted(check: Check) -> None:
    assert check("graph()", input={"from": "loaders"})


def test_random_data_over_which_loaders_cannot_pass_again_are_found(check: Check) -> None:
    noise = "noise := keras.layers.GaussianNoise(1.0)"
    expression = f"graph(train=lambda *shard: ({noise}) and data(*shard).map(lambda x: noise(x, training=True)))"
    with pytest.raises(ProgramError, match="the data set is random, and a loader would draw the same numbers"):
        check(expression, input={"from": "loaders", "sharding": "dynamic"})
    assert check(expression)


def test_with_dynamic_sharding_a_part_of_a_loader_needs_a_batch_and_no_worker_s_shard_does(check: Check) -> None:
    expression = "graph(train=lambda part, parts: data(0, 1).take(9 // parts))"
    content = {"train": {"steps": 2, "batch_size": 9}}
    with pytest.raises(ProgramError, match=r"shard 0 of 2 has fewer examples than train\.batch_size = 9"):
        check(expression, input={"from": "loaders"}, **content)
    assert check(expression, input={"from": "loaders", "sharding": "dynamic"}, **content)
    with pytest.raises(ProgramError, match=r"shard 0 of 2 has fewer examples than train\.batch_size = 9"):
        check(expression, input={"from": "loaders", "loaders": 2, "sharding": "dynamic"}, **content)


def test_a_batch_that_no_bucket_fills_is_found(check: Check) -> None:
    expression = "graph(loss=mean, train=sequences, evaluate=None)"
    buckets = {"pad": True, "bucket_boundaries": [3, 5, 7]}
    expected = r"has fewer examples than train\.batch_size = 9 in each of the buckets of input\.bucket_boundaries"
    with pytest.raises(ProgramError, match=expected):
        check(expression, input=buckets, train={"steps": 2, "batch_size": 9})
    assert check(expression, input={"pad": True}, train={"steps": 2, "batch_size": 9})
    assert check(expression, input=buckets)


def test_tables_are_counted_apart_from_the_parameters(check: Check) -> None:
    rows = 'tf.gather(tf.compat.v1.get_variable("t", [2000, 3]), tf.cast(batch, tf.int32))'
    expression = f"graph(loss=lambda batch: loss(batch) + tf.reduce_sum({rows}))"
    found = check(expression, tables={"t": {"rows": 2000}})
    assert re.search(r": 2 parameters in 1 tensor, 2 x 64 bytes, and 1 table with 2,000 rows; loss of", found)
