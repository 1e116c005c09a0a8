"""A model with a lookup layer trains on weighted examples, accumulates gradients, and resumes with its metrics."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import psfleet
from psfleet.checkpoint.store import newest
from psfleet.checkpoint.tensors import read_tensors
from psfleet.report.training_metrics import TrainingMetricsLog

pytestmark = pytest.mark.usefixtures("launches_forked")

PROGRAM = """\
import keras, numpy as np, psfleet, tensorflow as tf

WORDS = np.array([["a"], ["b"], ["c"], ["d"]] * 12)
LABELS = np.array([0, 1, 1, 0] * 12, np.int32)
WEIGHTS = np.array([1.0, 2.0, 0.5, 0.0] * 12, np.float32)

def model():
    lookup = keras.layers.StringLookup(vocabulary=["a", "b", "c"], output_mode="one_hot")
    dense = keras.layers.Dense(2, kernel_initializer="zeros")
    return keras.Sequential([keras.Input((1,), dtype="string"), lookup, dense])

def build():
    data = tf.data.Dataset.from_tensor_slices((WORDS, LABELS, WEIGHTS))
    return psfleet.KerasProgram(
        model=model,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        weighted_metrics=["accuracy"],
        train=lambda shard, shards: data.shard(shards, shard),
        evaluate=lambda: data,
    )
"""


@pytest.mark.extended
def test_weights_metrics_accumulation_and_tables_work_in_a_fleet_that_is_resumed(tmp_path: Path) -> None:
    (tmp_path / "words_program.py").write_text(PROGRAM)
    out = tmp_path / "run"
    job = {
        "name": "words",
        "program": "words_program:build",
        "fleet": {"ps": 1, "workers": 2},
        "optimizer": {"name": "lion", "learning_rate": 0.1, "weight_decay": 0.01},
        "train": {"steps": 4, "batch_size": 4, "accumulate": 3},
        "summaries": {"every_steps": 2},
        "device": {"intra_op_threads": 1},
    }
    first = psfleet.train(job, out=out, program_folder=tmp_path)
    assert (first.status, first.final_step, first.gradients.used) == ("done", 4, 8), first.error
    more = {"fleet": {"ps": 1, "workers": 1}, "train": {**job["train"], "steps": 8}}
    resumed = psfleet.train({**job, **more}, out=out, program_folder=tmp_path)
    assert (resumed.status, resumed.final_step) == ("done", 8), resumed.error
    assert resumed.eval["accuracy"] == 1.0, "examples of weight 0 count"
    checkpoint = newest(out / "checkpoints")
    assert checkpoint is not None
    assert sorted(read_tensors(checkpoint)) == ["sequential/dense/bias", "sequential/dense/kernel"]
    accuracies = scalars(out / "tensorboard", "train/accuracy")
    assert sorted(accuracies) == [2, 4, 6, 8]
    assert accuracies[8] == pytest.approx(1.0)
    recorded = TrainingMetricsLog(out / TrainingMetricsLog.FILE_NAME).curve()
    assert {each.step: pytest.approx(each.metrics["accuracy"]) for each in recorded} == accuracies
    assert resumed.training_metrics == recorded[-1].metrics
    assert "Evaluation and training: accuracy by step" in (out / "report.html").read_text()


@pytest.mark.extended
def test_a_worker_with_another_vocabulary_ends_the_run(tmp_path: Path) -> None:
    """As of a program that adapts its lookup layer to its shard of the data."""
    own = PROGRAM.replace('vocabulary=["a", "b", "c"]', 'vocabulary=["a", "b", "c" if SHARD == [0] else "d"]')
    own = own.replace("data.shard(shards, shard)", "SHARD.append(shard) or data.shard(shards, shard)")
    (tmp_path / "own_words_program.py").write_text(own + "\nSHARD = []\n")
    job = {
        "name": "own-words",
        "program": "own_words_program:build",
        "fleet": {"ps": 1, "workers": 2},
        "optimizer": {"name": "sgd", "learning_rate": 0.1},
        "train": {"steps": 4, "batch_size": 4},
        "device": {"intra_op_threads": 1},
    }
    report = psfleet.train(job, out=tmp_path / "run", program_folder=tmp_path)
    assert (report.status, report.exit_code) == ("failed", 78), report.error
    assert report.error is not None
    assert "layer string_lookup: its lookup table has the content" in report.error


def scalars(folder: Path, tag: str) -> dict[int, float]:
    """The values of a scalar by step, from all event files."""
    found = {}
    for path in sorted(folder.rglob("*tfevents*")):
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                if value.tag == tag:
                    found[event.step] = float(np.squeeze(tf.make_ndarray(value.tensor)))
    return found
