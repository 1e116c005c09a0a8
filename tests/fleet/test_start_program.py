"""`psfleet.start(program=...)` with a function of a script, of `python -c` and of stdin."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.local_fleet import END_SECS, START_SECS
from support.rows import first_rows

SCRIPT = """
import numpy as np
import psfleet

TRUE = 3.0

def points(number):
    import tensorflow as tf
    x = np.linspace(-1, 1, number, dtype=np.float32)
    return tf.data.Dataset.from_tensor_slices((x, TRUE * x))

def loss(batch):
    import tensorflow as tf
    x, y = batch
    weight = tf.compat.v1.get_variable("weight", [], initializer=tf.compat.v1.zeros_initializer())
    return tf.reduce_mean((weight * x - y) ** 2)

def build(number=400):
    return psfleet.GraphProgram(loss=loss, train=lambda i, n: points(number).shard(n, i), evaluate=lambda: points(9))

job = {"name": "started", "fleet": {"ps": 1, "workers": 1}, "optimizer": {"name": "sgd", "learning_rate": 0.5},
       "train": {"steps": 40, "batch_size": 10}, "device": {"intra_op_threads": 1}}
if __name__ == "__main__":
    run = psfleet.start(job, program=build)
    report = run.wait(timeout_secs=60)
    print(report.status, report.final_step, report.eval["loss"] < 1e-3)
"""


@pytest.mark.usefixtures("launches_forked")
@pytest.mark.parametrize(
    "arguments", first_rows([["-"], ["-c", SCRIPT], ["script.py"]]), ids=["stdin", "-c", "a script"]
)
def test_a_function_of_the_caller_is_trained_in_the_background(tmp_path: Path, arguments: list[str]) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, *arguments],
        input=SCRIPT if arguments == ["-"] else "",
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=START_SECS + END_SECS,
    )
    assert done.stdout.split() == ["done", "40", "True"], done.stderr
    assert (tmp_path / "runs" / "started" / "program" / "stored_program.pkl").exists()
