"""Loading a training program: what is found, what is refused, and what the refusal says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import keras
import numpy as np
import pytest
import tensorflow as tf
from support.program_samples import sample_job

from psfleet.errors import ProgramError
from psfleet.job.program import GraphProgram, KerasProgram, load_program
from psfleet.tf.program_data import built_model, training_data

GRAPH = "GraphProgram(loss=lambda batch: {loss}, train=lambda shard, shards: None)"


def write(folder: Path, body: str, name: str = "program.py") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("from psfleet.job.program import GraphProgram, KerasProgram\n" + dedent(body))
    return folder


def with_options(**options: object) -> object:
    return sample_job().model_copy(update={"options": options})


def test_the_options_of_the_job_are_the_arguments_of_the_callable(tmp_path: Path) -> None:
    write(tmp_path, f"def build(factor):\n    return {GRAPH.format(loss='factor')}")
    program = load_program(with_options(factor=3), tmp_path)
    assert isinstance(program, GraphProgram)
    assert program.loss(None) == 3


def test_loading_a_program_imports_no_tensorflow(tmp_path: Path) -> None:
    write(tmp_path, f"def build():\n    return {GRAPH.format(loss=0)}")
    script = (
        "import sys, pathlib, psfleet.job.program, psfleet.job.job; "
        "job = psfleet.job.job.parse_job({'name': 'a', 'program': "
        "'program:build', 'optimizer': {'name': 'sgd', 'learning_rate': 1}, 'train': {'steps': 1, 'batch_size': 1}}); "
        f"psfleet.job.program.load_program(job, pathlib.Path({str(tmp_path)!r})); "
        "assert not {'tensorflow', 'keras'} & set(sys.modules)"
    )
    root = Path(__file__).parents[4]
    subprocess.run([sys.executable, "-c", script], check=True, cwd=root, timeout=60)


def test_programs_and_helpers_of_the_same_name_in_two_folders_do_not_mix(tmp_path: Path) -> None:
    for name in ("one", "two"):
        folder = write(
            tmp_path / name, f"from helper import NAME\ndef build():\n    return {GRAPH.format(loss='NAME')}"
        )
        (folder / "helper.py").write_text(f"NAME = {name!r}")
    loaded = [load_program(sample_job(), tmp_path / name) for name in ("one", "two", "one")]
    assert [program.loss(None) for program in loaded] == ["one", "two", "one"]


def test_the_folder_is_on_the_path_once_and_first(tmp_path: Path) -> None:
    write(tmp_path, f"def build():\n    return {GRAPH.format(loss=0)}")
    load_program(sample_job(), tmp_path)
    load_program(sample_job(), tmp_path)
    assert sys.path[0] == str(tmp_path)
    assert sys.path.count(str(tmp_path)) == 1


def test_a_program_of_an_earlier_folder_is_not_found_in_a_later_one(tmp_path: Path) -> None:
    write(tmp_path / "one", f"def build():\n    return {GRAPH.format(loss=0)}")
    (tmp_path / "two").mkdir()
    load_program(sample_job(), tmp_path / "one")
    with pytest.raises(ProgramError) as caught:
        load_program(sample_job(), tmp_path / "two")
    expected = f"program 'program:build': no module 'program' in {tmp_path}/two or on the Python path"
    assert str(caught.value) == expected


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("def other(): pass", "has nothing of that name at 'build', expected a callable"),
        ("build = 3", "has int at 'build', expected a callable"),
        ("def build(a, b=1): pass", "options {} do not fit build(): missing a required argument: 'a'"),
        ("def build(): return 3", "build() returned int, expected KerasProgram or GraphProgram"),
        ("def build(): return GraphProgram(loss=3, train=print)", "GraphProgram.loss is 3, expected a function"),
        ("def build(): return 1 / 0", "build() raised ZeroDivisionError: division by zero"),
        ("import missing_module", "import program raised ModuleNotFoundError: No module named 'missing_module'"),
        ("def build(:", "import program raised SyntaxError: "),
        ("import sys; sys.exit(0)", "import program raised SystemExit: 0"),
        ("import sys\ndef build(): sys.exit(0)", "build() raised SystemExit: 0"),
    ],
)
def test_a_wrong_program_is_refused_in_one_line(tmp_path: Path, body: str, message: str) -> None:
    write(tmp_path, body)
    with pytest.raises(ProgramError) as caught:
        load_program(sample_job(), tmp_path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 70


def test_unknown_options_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "def build(): pass")
    with pytest.raises(ProgramError, match=r"do not fit build.*unexpected keyword argument 'factor'"):
        load_program(with_options(factor=3), tmp_path)


def test_the_details_of_an_exception_are_the_users_traceback_alone(tmp_path: Path) -> None:
    write(tmp_path, "def inner():\n    raise ValueError('boom')\ndef build():\n    inner()")
    with pytest.raises(ProgramError) as caught:
        load_program(sample_job(), tmp_path)
    lines = [line for line in caught.value.details.splitlines() if line.startswith("  File")]
    assert [line.split(", ")[-1] for line in lines] == ["in build", "in inner"]
    assert all(str(tmp_path) in line for line in lines)


def two_inputs(shard: int, shards: int) -> tf.data.Dataset:
    x = {"a": np.ones((8, 3), np.float32), "b": np.ones((8, 2), np.float32)}
    return tf.data.Dataset.from_tensor_slices((x, np.zeros(8, np.float32)))


@keras.saving.register_keras_serializable()
class Sum(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = keras.layers.Dense(1), keras.layers.Dense(1)

    def call(self, x: dict[str, tf.Tensor]) -> tf.Tensor:
        return self.a(x["a"]) + self.b(x["b"])


def test_an_unbuilt_model_is_built_on_the_structure_of_its_data() -> None:
    model = built_model(KerasProgram(model=Sum, loss="mse", train=two_inputs), sample_job())
    assert [tuple(variable.shape) for variable in model.trainable_variables] == [(3, 1), (1,), (2, 1), (1,)]


def test_initial_weights_are_a_function_of_the_seed() -> None:
    program = KerasProgram(model=Sum, loss="mse", train=two_inputs)
    first, again, other = (built_model(program, sample_job(seed=seed)).get_weights()[0] for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda: 3, r"model\(\) returned int, expected keras.Model"),
        (lambda: 1 / 0, r"model\(\) raised ZeroDivisionError"),
        (lambda: keras.Sequential([keras.layers.Dense(1)]), "building the model on its first batch raised"),
        (Sum(), "KerasProgram.model is a model, expected a function that makes and returns one"),
    ],
)
def test_a_model_that_cannot_be_built_is_refused(model: object, message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        built_model(KerasProgram(model=model, loss="mse", train=two_inputs), sample_job())


def test_arrays_in_place_of_a_data_set_are_refused_with_the_call_that_makes_one() -> None:
    program = KerasProgram(model=Sum, loss="mse", train=lambda shard, shards: (np.zeros(3), np.zeros(3)))
    with pytest.raises(ProgramError, match=r"train\(0, 1\) returned tuple, .*Dataset.from_tensor_slices\(\(x, y\)\)"):
        training_data(program, sample_job(), 0, 1)


def test_an_unbuilt_model_without_data_is_refused() -> None:
    program = KerasProgram(model=Sum, loss="mse", train=lambda shard, shards: two_inputs(0, 1).take(0))
    with pytest.raises(ProgramError, match="training data of shard 0 is empty"):
        built_model(program, sample_job())
