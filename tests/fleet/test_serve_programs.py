"""What is served besides Keras models on dense tensors: graph programs, and tables whose rows are hashes of ids."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support import commands
from support.exported_run import BIAS, KERNEL, X, trained, with_checkpoint
from support.rows import first_rows
from support.served import READY_SECS, query, serving

from psfleet.checkpoint.parts import ShardContent
from psfleet.checkpoint.whole import write_whole
from psfleet.job.job import parse_job
from psfleet.job.program_files import digest, program_files
from psfleet.job.service_access import BETWEEN_GRAPH, IN_GRAPH
from psfleet.layout import EmbeddingContent, EmbeddingSpec, Layout, TensorSpec
from psfleet.polling import wait_until

END_SECS = 90.0
NUM_PS = 2
ROWS = 50
USERS = ["ann", "bob", "eve", "dan"]
ROW_PROGRAM = f"""
import keras
import numpy as np
import tensorflow as tf
from psfleet import KerasProgram

def users():
    return tf.data.Dataset.from_tensor_slices({USERS})

def model():
    inputs = keras.Input((), dtype="string")
    rows = keras.layers.Embedding({ROWS}, 2, name="user")(inputs)
    return keras.Model(inputs, keras.layers.Dense(3, name="dense")(rows))

def program():
    data = lambda *shard: users().map(lambda user: (user, tf.ones([3])))
    return KerasProgram(model=model, loss="mse", train=data)
"""
GRAPH_DATA = f"""
import numpy as np
import tensorflow as tf

def features():
    x = np.array({X.tolist()}, np.float32)
    return tf.data.Dataset.from_tensor_slices({{"x": x, "scale": np.float32([1, 2, 3])}})
"""


def hashed_run(folder: Path) -> None:
    """A run on two ps whose table has rows for all users but the last."""
    (folder / "row_program.py").write_text(ROW_PROGRAM)
    job = {
        "name": "net",
        "program": "row_program:program",
        "optimizer": {"name": "sgd", "learning_rate": 0.1},
        "train": {"steps": 1, "batch_size": 2},
        "fleet": {"ps": NUM_PS},
        "tables": {"user": {"rows": ROWS, "hash": True, "init": "uniform"}},
    }
    parsed = parse_job(job)
    table, seed = parsed.tables["user"], parsed.train.seed
    spec = EmbeddingSpec("user", "user/embeddings", ROWS, 2, table.init, table.init_scale, seed, True)
    tensors = {"dense/kernel": KERNEL, "dense/bias": BIAS}
    specs = [TensorSpec(name, value.shape, "float32") for name, value in tensors.items()]
    layout = Layout.plan(specs, [], [], NUM_PS, 4096, embeddings=(spec,))
    ids = np.unique(tf.strings.to_hash_bucket_fast(USERS[:-1], ROWS).numpy())

    def content(shard: int, vectors: Any) -> ShardContent:
        own = ids[ids % NUM_PS == shard]
        rows = np.stack([own, -own], 1).astype(np.float32)
        return ShardContent(slots={}, scalars={}, tables={spec.name: EmbeddingContent(own, rows)}, **vectors)

    write_whole(
        folder / "checkpoints", layout, tensors, content, run="r", step=3, generation=1, optimizer="sgd", slots=(),
        extra={"job": job, "program_folder": str(folder)},
    )  # fmt: skip


def graph_run(folder: Path) -> None:
    """A run of a graph program with `predict`."""
    trained(folder, "predicting_program")
    with_checkpoint(folder, 3, KERNEL, BIAS, "predicting_program")
    (folder / "graph_data.py").write_text(GRAPH_DATA)


TEXTS = {"name": "input_0", "datatype": "BYTES", "shape": [len(USERS)], "data": USERS}
NUMBERS = [
    {"name": "x", "datatype": "FP32", "shape": [3, 2], "data": X.ravel().tolist()},
    {"name": "scale", "datatype": "FP32", "shape": [3], "data": [1, 2, 3]},
]


@pytest.mark.parametrize(
    ("make", "mode", "inputs", "data", "names"),
    first_rows(
        [
            (hashed_run, BETWEEN_GRAPH, [TEXTS], "row_program:users", {"predictions": "output_0"}),
            (hashed_run, IN_GRAPH, [TEXTS], "row_program:users", {"predictions": "output_0"}),
            (graph_run, BETWEEN_GRAPH, NUMBERS, "graph_data:features", {"logits": "logits", "label": "label"}),
            (graph_run, IN_GRAPH, NUMBERS, "graph_data:features", {"logits": "logits", "label": "label"}),
        ]
    ),
)
def test_answers_are_those_of_psfleet_predict(
    tmp_path: Path,
    make: Callable[[Path], None],
    mode: str,
    inputs: list[dict[str, Any]],
    data: str,
    names: dict[str, str],
) -> None:
    make(tmp_path)
    with serving(tmp_path, ["."], "--members", mode, probe={"inputs": inputs}) as service, service.client() as client:
        status, answer = client.status_and_content("POST", "/v2/models/net/infer", {"inputs": inputs})
        assert (status, answer["model_version"]) == (200, "3"), answer
    done = commands.psfleet(
        tmp_path, "predict", ".", "--data", data, "--out", "out.npz", "--workers", "1", timeout_secs=END_SECS
    )
    assert done.returncode == 0, done.stdout + done.stderr
    outputs = {each["name"]: np.reshape(each["data"], each["shape"]) for each in answer["outputs"]}
    with np.load(tmp_path / "out.npz") as predicted:
        assert sorted(predicted.files) == sorted(names)
        for name, output in names.items():
            np.testing.assert_allclose(outputs[output], predicted[name], rtol=1e-6)
            assert len(np.unique(predicted[name])) > 1 or name == "label"


DOUBLED = """
def doubled_program():
    layers = [keras.layers.Input([2]), keras.layers.Dense(3, name="dense"), keras.layers.Rescaling(2.0)]
    return KerasProgram(model=lambda: keras.Sequential(layers, name="net"), loss="mse", train=keras_program().train)
"""


@pytest.mark.extended
def test_a_checkpoint_of_another_program_is_answered_by_that_program(tmp_path: Path) -> None:
    trained(tmp_path)
    with serving(tmp_path, ["."]) as service, service.client() as client:
        first = service.pid("member")
        with (tmp_path / "versioned_program.py").open("a") as file:
            file.write(DOUBLED)
        here = digest(program_files("versioned_program:doubled_program", tmp_path))
        with_checkpoint(tmp_path, 3, KERNEL, BIAS, "doubled_program", program_digest=here)
        _, answer = wait_until(
            lambda: client.status_and_content("POST", "/v2/models/net/infer", query(X)), READY_SECS, "step 3",
            done=lambda found: found[1].get("model_version") == "3",
        )  # fmt: skip
        found = np.array(answer["outputs"][0]["data"], np.float32).reshape(3, 3)
        np.testing.assert_allclose(found, 2 * (X @ KERNEL + BIAS), rtol=1e-6)
        assert service.pid("member") != first


RESHAPED = DOUBLED.replace("doubled", "reshaped").replace("Rescaling(2.0)", "Reshape([3, 1])")


@pytest.mark.extended
@pytest.mark.parametrize("mode", [BETWEEN_GRAPH, IN_GRAPH])
def test_a_checkpoint_of_a_program_with_other_outputs_is_served_by_a_new_front(tmp_path: Path, mode: str) -> None:
    trained(tmp_path)
    with serving(tmp_path, ["."], "--replicas", "2", "--members", mode) as service:
        service.await_joins(2)
        with (tmp_path / "versioned_program.py").open("a") as file:
            file.write(RESHAPED)
        with_checkpoint(tmp_path, 3, KERNEL, BIAS, "reshaped_program")

        def answered() -> tuple[int, dict[str, Any]]:
            # The front begins anew: connections are lost.
            try:
                with service.client() as client:
                    return client.status_and_content("POST", "/v2/models/net/infer", query(X))
            except OSError:
                return 0, {}

        _, answer = wait_until(
            answered, READY_SECS, "step 3", done=lambda found: found[1].get("model_version") == "3"
        )  # fmt: skip
        (output,) = answer["outputs"]
        assert output["shape"] == [3, 3, 1]
        np.testing.assert_allclose(np.array(output["data"]).reshape(3, 3), X @ KERNEL + BIAS, rtol=1e-6)
