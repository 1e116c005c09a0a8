"""The model of a member: inputs and outputs by name, weights, and what cannot be served."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import safetensors.numpy
import tensorflow as tf
from support.exported_run import BIAS, KERNEL, X, trained, with_checkpoint

import psfleet
from psfleet.checkpoint.keras_names import named_variables
from psfleet.errors import BadJobError, ChangedProgramError, NoCheckpointError, ProgramError, UsageError
from psfleet.job.job import Job, parse_job
from psfleet.job.program_files import digest, program_files
from psfleet.job.service_access import MemberSource
from psfleet.tf.program_data import built_model
from worker_service.member import model as member_model
from worker_service.member.model import ServedModel, load
from worker_service.member.newer_weights import INVALID_SECS, NewerWeights
from worker_service.predictions.weights import Weights


def served(monkeypatch: pytest.MonkeyPatch, make: object, x: object = None) -> ServedModel:
    """A model that is made by a function; its training data have the given x."""
    examples = np.zeros([4, 2], np.float32) if x is None else x
    data = tf.data.Dataset.from_tensor_slices((examples, np.zeros([4, 1], np.float32)))
    program = psfleet.KerasProgram(model=make, loss="mse", train=lambda index, count: data)  # type: ignore[arg-type]
    monkeypatch.setattr(member_model, "load_program", lambda job, folder: program)
    values = {name: each.numpy() for name, each in named_variables(built_model(program, job())).items()}
    return ServedModel(job(), Path(), Weights(0, values, "its initial ones"))


def job() -> Job:
    return parse_job(
        {
            "name": "net",
            "program": "program:build",
            "optimizer": {"name": "sgd", "learning_rate": 0.1},
            "train": {"steps": 1, "batch_size": 2},
        }
    )


def test_a_run_is_served_with_its_newest_weights(tmp_path: Path) -> None:
    trained(tmp_path)
    with_checkpoint(tmp_path, 7, 2 * KERNEL, BIAS)
    found, folder, weights = load(MemberSource(run=str(tmp_path)))
    model = ServedModel(found, folder, weights)
    step, (output,) = model.predict([X])
    assert (step, model.step) == (7, 7)
    np.testing.assert_allclose(output, X @ (2 * KERNEL) + BIAS, rtol=1e-6)
    assert load(MemberSource(run=str(tmp_path), step=0))[2].step == 0


def test_a_trial_is_served_with_its_weights(tmp_path: Path) -> None:
    trained(tmp_path)
    found, folder, _ = load(MemberSource(run=str(tmp_path)))
    file = tmp_path / "w.safetensors"
    safetensors.numpy.save_file({"net/dense/kernel": KERNEL, "net/dense/bias": 5 * BIAS}, file)
    source = MemberSource(job=found.model_dump_json(), weights=str(file), program_folder=str(folder))
    found, folder, weights = load(source)
    model = ServedModel(found, folder, weights)
    step, (output,) = model.predict([X])
    assert step == found.train.steps
    np.testing.assert_allclose(output, X @ KERNEL + 5 * BIAS, rtol=1e-6)
    file.write_bytes(b"damaged")
    with pytest.raises(NoCheckpointError, match="cannot be read"):
        load(source)


def test_weights_of_another_model_are_refused_and_those_before_stay(tmp_path: Path) -> None:
    trained(tmp_path)
    found, folder, weights = load(MemberSource(run=str(tmp_path)))
    model = ServedModel(found, folder, weights)
    with pytest.raises(BadJobError, match="'net/dense/bias' is missing in elsewhere"):
        model.assign(Weights(9, {"net/dense/kernel": KERNEL}, "elsewhere"))
    assert model.predict([X])[0] == 0


def test_inputs_and_outputs_have_the_keys_of_dictionaries(monkeypatch: pytest.MonkeyPatch) -> None:
    def make() -> keras.Model:
        words = keras.Input([], dtype="string", name="words")
        size = keras.Input([2], name="size")
        length = keras.layers.Lambda(tf.strings.length, output_shape=(), dtype="int32")(words)
        return keras.Model({"size": size, "words": words}, {"b": keras.layers.Dense(1)(size), "a": length})

    model = served(monkeypatch, make)
    assert [(each.name, each.datatype, each.shape) for each in model.metadata.inputs] == [
        ("size", "FP32", (-1, 2)), ("words", "BYTES", (-1,))
    ]  # fmt: skip
    assert [each.name for each in model.metadata.outputs] == ["b", "a"]
    words = np.array([b"ab", b"abc"], object)
    assert model.predict([np.zeros([2, 2], np.float32), words])[1][1].tolist() == [2, 3]


def test_a_model_that_is_a_class_has_the_inputs_of_its_first_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    class Sum(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense = keras.layers.Dense(1, dtype="bfloat16")

        def call(self, x: dict[str, tf.Tensor]) -> list[tf.Tensor]:
            return [self.dense(x["u"]), x["v"]]

    x = {"v": np.zeros([4, 3], np.int64), "u": np.zeros([4, 2], np.float32)}
    model = served(monkeypatch, Sum, x)
    assert [(each.name, each.datatype, each.shape) for each in model.metadata.inputs] == [
        ("u", "FP32", (-1, 2)), ("v", "INT64", (-1, 3))
    ]  # fmt: skip
    found = [(each.name, each.datatype) for each in model.metadata.outputs]
    assert found == [("output_0", "FP32"), ("output_1", "INT64")], "bfloat16 is no type of NumPy"


@pytest.mark.parametrize("is_dict", [True, False])
def test_a_sequential_model_whose_first_layer_takes_several_tensors_has_the_inputs_of_its_first_batch(
    monkeypatch: pytest.MonkeyPatch, is_dict: bool
) -> None:
    def make() -> keras.Model:
        names = ("u", "v") if is_dict else (0, 1)
        joined = keras.layers.Lambda(lambda x: keras.ops.concatenate([x[name] for name in names], 1))
        return keras.Sequential([joined, keras.layers.Dense(1, kernel_initializer="ones")])

    u, v = np.zeros([4, 2], np.float32), np.ones([4, 3], np.float32)
    model = served(monkeypatch, make, {"u": u, "v": v} if is_dict else (u, v))
    names = ("u", "v") if is_dict else ("input_0", "input_1")
    assert [(each.name, each.shape) for each in model.metadata.inputs] == [(names[0], (-1, 2)), (names[1], (-1, 3))]
    assert model.predict([u, v])[1][0].tolist() == [[3.0]] * 4


def test_a_prediction_that_fails_is_an_error_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    def make() -> keras.Model:
        ids = keras.Input([1], dtype="int32")
        return keras.Model(ids, keras.layers.Lambda(lambda x: tf.gather([1.0, 2.0], x), output_shape=(1,))(ids))

    model = served(monkeypatch, make)
    assert model.predict([np.array([[1]], np.int32)])[1][0].tolist() == [[2.0]]
    with pytest.raises(ProgramError, match="predicting"):
        model.predict([np.array([[9]], np.int32)])


def test_a_graph_program_has_the_inputs_of_its_training_data(monkeypatch: pytest.MonkeyPatch) -> None:
    def predict(features: dict[str, Any]) -> list[tf.Tensor]:
        return [features["user"]["age"] + 1, tf.strings.upper(features["user"]["name"])]

    features = {"user": {"name": ["ann", "bob"], "age": [3, 4]}, "at": np.zeros([2, 3], np.float32)}
    data = tf.data.Dataset.from_tensor_slices((features, [0, 0]))
    program = psfleet.GraphProgram(loss=lambda batch: tf.constant(0.0), train=lambda *shard: data, predict=predict)
    monkeypatch.setattr(member_model, "load_program", lambda job, folder: program)
    model = ServedModel(job(), Path(), Weights(4, {}, "nowhere"))
    assert [(each.name, each.datatype, each.shape) for each in model.metadata.inputs] == [
        ("at", "FP32", (-1, 3)), ("user/age", "INT32", (-1,)), ("user/name", "BYTES", (-1,))
    ]  # fmt: skip
    assert [(each.name, each.datatype) for each in model.metadata.outputs] == [
        ("output_0", "INT32"),
        ("output_1", "BYTES"),
    ]
    step, (ages, names) = model.predict(
        [np.zeros([1, 3], np.float32), np.array([7], np.int32), np.array([b"eve"], object)]
    )
    assert (step, ages.tolist(), names.tolist()) == (4, [8], [b"EVE"])


def test_inputs_of_one_name_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    data = tf.data.Dataset.from_tensor_slices({"a": {"b": [1, 2]}, "a/b": [3, 4]})
    program = psfleet.GraphProgram(
        loss=lambda batch: tf.constant(0.0), train=lambda *shard: data, predict=lambda features: features["a/b"]
    )
    monkeypatch.setattr(member_model, "load_program", lambda job, folder: program)
    with pytest.raises(ProgramError, match="naming the inputs raised ValueError: two of input have one name"):
        ServedModel(job(), Path(), Weights(4, {}, "nowhere"))


def test_a_program_without_predictions_is_refused(tmp_path: Path) -> None:
    found = load(MemberSource(run=str(trained(tmp_path, "graph_program"))))
    with pytest.raises(UsageError, match=r"has no predictions, expected GraphProgram\(predict=\.\.\.\)"):
        ServedModel(*found)


def test_newer_weights_are_taken_once_and_damaged_ones_are_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trained(tmp_path)
    source = MemberSource(run=str(tmp_path))
    now = [0.0]
    newer = NewerWeights(source, load(source)[2], lambda: now[0])
    newer.look()
    assert newer.taken() is None, "the member has these"
    with_checkpoint(tmp_path, 3, KERNEL, BIAS)
    newer.look()
    found = newer.taken()
    assert found is not None
    assert found.step == 3
    assert newer.taken() is None
    with_checkpoint(tmp_path, 4, KERNEL, BIAS)
    (part,) = (tmp_path / "checkpoints").glob("*4-g1/*.safetensors")
    content = part.read_bytes()
    part.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    newer.look()
    assert newer.taken() is None
    part.write_bytes(content)
    newer.look()
    assert newer.taken() is None, "it is not read at each look"
    now[0] += INVALID_SECS
    newer.look()
    again = newer.taken()
    assert again is not None
    assert again.step == 4


def test_a_damaged_checkpoint_does_not_delay_the_next_one(tmp_path: Path) -> None:
    trained(tmp_path)
    source = MemberSource(run=str(tmp_path))
    newer = NewerWeights(source, load(source)[2], lambda: 0.0)
    with_checkpoint(tmp_path, 3, KERNEL, BIAS)
    (part,) = (tmp_path / "checkpoints").glob("*3-g1/*.safetensors")
    part.write_bytes(bytes(part.stat().st_size))
    newer.look()
    assert newer.taken() is None
    with_checkpoint(tmp_path, 4, KERNEL, BIAS)
    newer.look()
    found = newer.taken()
    assert found is not None
    assert found.step == 4


@pytest.mark.parametrize(
    "change",
    [
        {"options": {"activation": "relu"}},
        {"program_digest": "2222"},
    ],
)
def test_weights_of_another_program_are_not_assigned_although_their_shapes_are_equal(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    trained(tmp_path)
    source = MemberSource(run=str(tmp_path))
    found, folder, weights = load(source)
    model, newer = ServedModel(found, folder, weights), NewerWeights(source, weights)
    with_checkpoint(tmp_path, 3, 2 * KERNEL, BIAS, **change)
    newer.look()
    taken = newer.taken()
    assert taken is not None
    assert newer.has_program is ("program_digest" not in change)
    with pytest.raises(ChangedProgramError, match="3-g1 is of another program, or of other options, than this model"):
        model.assign(taken)
    step, (output,) = model.predict([X])
    assert step == 0
    np.testing.assert_allclose(output, X @ KERNEL + BIAS, rtol=1e-6)


@pytest.mark.parametrize("program", ["keras_program", "predicting_program"])
def test_a_graph_program_alone_is_another_one_with_another_number_of_workers_without_a_quorum(
    tmp_path: Path, program: str
) -> None:
    """They divide the global step, which no Keras model reads."""
    trained(tmp_path, program)
    found, folder, weights = load(MemberSource(run=str(tmp_path)))
    model = ServedModel(found, folder, weights)
    with_checkpoint(tmp_path, 3, 2 * KERNEL, BIAS, program, update={"mode": "async"}, fleet={"workers": 2})
    later = load(MemberSource(run=str(tmp_path)))[2]
    with nullcontext() if program == "keras_program" else pytest.raises(ChangedProgramError):
        model.assign(later)
    assert model.step == (3 if program == "keras_program" else 0)


def test_a_program_is_here_if_its_files_have_the_digest_of_the_checkpoint(tmp_path: Path) -> None:
    trained(tmp_path)
    source = MemberSource(run=str(tmp_path))
    newer = NewerWeights(source, load(source)[2])
    here = digest(program_files("versioned_program:keras_program", tmp_path))
    with_checkpoint(tmp_path, 3, KERNEL, BIAS, program_digest=here)
    newer.look()
    assert newer.taken() is not None
    assert newer.has_program
