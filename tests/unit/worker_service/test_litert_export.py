"""A LiteRT model is run before it is written, and its metrics are those of the program's evaluation."""

from __future__ import annotations

import math
import re
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter
from support.exported_run import BIAS, KERNEL, X, trained
from support.program_samples import sample_job
from support.rows import first_rows

from psfleet.checkpoint.versions import LITERT, Request, export_version, find
from psfleet.errors import ProgramError, UsageError
from worker_service import export, litert_export

FUNCTIONAL = ("two_inputs_program", "named_output_program", "dict_output_program")
METRICS = r"loss (\S+), mae (\S+?)"


def _exported(folder: Path, program: str, calibrate: int | None = None, max_loss: float | None = None) -> str:
    # The variables of a functional model are not in a scope of the model's name.
    checkpoint = find(trained(folder, program, scope="" if program in FUNCTIONAL else "net/"))
    request = Request(checkpoint=str(checkpoint.folder), kind=LITERT, calibrate=calibrate, max_loss=max_loss)
    return export_version(checkpoint, folder / "out", lambda each: export.write(request, each)).summary


def test_a_float_model_predicts_with_the_weights_of_the_checkpoint(tmp_path: Path) -> None:
    summary = _exported(tmp_path, "evaluated_program")
    content = (tmp_path / "out/0/model.tflite").read_bytes()
    runner = Interpreter(model_content=content).get_signature_runner()
    (name,) = runner.get_input_details()
    (found,) = runner(**{name: X}).values()
    assert abs(found - (X @ KERNEL + BIAS)).max() < 1e-5
    found_metrics = re.fullmatch(rf".*; Keras, {METRICS}; litert float {len(content):,} bytes, {METRICS}", summary)
    assert found_metrics is not None, summary
    assert [float(value) for value in found_metrics.groups()] == [0, 0, 0, 0]


def test_an_int8_model_has_int8_weights_and_activations_and_its_loss_is_shown(tmp_path: Path) -> None:
    summary = _exported(tmp_path, "evaluated_program", calibrate=40)
    interpreter = Interpreter(model_path=str(tmp_path / "out/0/model.tflite"))
    types = [each["dtype"].__name__ for each in interpreter.get_tensor_details()]
    assert types.count("int8") == 3, "the kernel, and input and output of the layer"
    found = re.fullmatch(
        rf".*; float .* bytes, {METRICS}; int8 .* bytes \(.* of float\), {METRICS}; calibrated on 40 training examples",
        summary,
    )
    assert found is not None, summary
    before, after = float(found[2]), float(found[4])
    assert before == 0 < after < 0.1


@pytest.mark.parametrize("calibrate", first_rows([40, None]))
def test_a_model_with_two_inputs_reads_them_by_their_names(tmp_path: Path, calibrate: int | None) -> None:
    summary = _exported(tmp_path, "two_inputs_program", calibrate)
    runner = Interpreter(model_path=str(tmp_path / "out/0/model.tflite")).get_signature_runner()
    assert sorted(runner.get_input_details()) == ["a", "b"]
    (found,) = runner(a=np.zeros([1, 2], np.float32), b=np.ones([1, 3], np.int32)).values()
    assert abs(found - (BIAS + 1)).max() < (0.2 if calibrate else 1e-5)
    losses = [float(value) for value in re.findall(r"loss (\S+),", summary)]
    assert len(losses) == 2
    assert losses[0] == 0 <= losses[1] < 0.1


def test_a_sequential_model_whose_first_layer_takes_a_dict_is_exported(tmp_path: Path) -> None:
    assert "litert float" in _exported(tmp_path, "joining_program")
    runner = Interpreter(model_path=str(tmp_path / "out/0/model.tflite")).get_signature_runner()
    assert sorted(runner.get_input_details()) == ["a", "b"]


@pytest.mark.parametrize("calibrate", first_rows([None, 40]))
@pytest.mark.parametrize("program", ["named_output_program", "dict_output_program"])
def test_losses_and_metrics_are_given_by_the_names_of_outputs(
    tmp_path: Path, program: str, calibrate: int | None
) -> None:
    summary = _exported(tmp_path, program, calibrate)
    losses = [float(value) for value in re.findall(r"loss (\S+),", summary)]
    assert len(losses) == 2
    assert losses[0] == 0 <= losses[1] < 0.1
    assert "mae" in summary


@pytest.mark.extended
def test_a_model_of_a_class_of_its_own_is_exported(tmp_path: Path) -> None:
    assert "litert float" in _exported(tmp_path, "subclassed_program")


def test_a_loss_above_the_limit_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ProgramError, match=r"loss of the LiteRT model is .* expected at most --max-loss 0$"):
        _exported(tmp_path, "evaluated_program", calibrate=40, max_loss=0)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("before", "after", "is_refused"),
    [
        ({"accuracy": 0.9, "loss": 1.0}, {"accuracy": 0.88, "loss": 9.0}, False),
        ({"accuracy": 0.9, "loss": 1.0}, {"accuracy": 0.8, "loss": 1.0}, True),
        ({"accuracy": 0.9, "loss": 1.0}, {"accuracy": 0.99, "loss": 1.0}, False),
        ({"accuracy": 0.9, "loss": 1.0}, {"accuracy": math.nan, "loss": 1.0}, True),
        ({"mae": 1.0, "loss": 1.0}, {"mae": 2.0, "loss": 1.0}, False),
        ({"mae": 1.0, "loss": 1.0}, {"mae": 0.5, "loss": 1.1}, True),
    ],
)
def test_the_limit_is_about_accuracy_or_else_the_loss(
    before: dict[str, float], after: dict[str, float], is_refused: bool
) -> None:
    with pytest.raises(ProgramError) if is_refused else nullcontext():
        litert_export.check_loss(before, after, sample_job(), 0.05)


def test_a_limit_without_evaluation_data_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--max-loss: .* has no evaluation data"):
        _exported(tmp_path, "keras_program", max_loss=1)


@pytest.mark.parametrize(
    ("program", "operations"),
    [
        ("unconvertible_program", r"tf\.Cholesky, tf\.MatrixDiagPartV3"),
        ("bfloat16_program", r"tf\.BiasAdd in bfloat16, tf\.MatMul in bfloat16"),
    ],
)
def test_a_model_that_cannot_be_converted_names_the_operation(tmp_path: Path, program: str, operations: str) -> None:
    with pytest.raises(ProgramError, match=f"cannot be converted: LiteRT has no operation for {operations}$"):
        _exported(tmp_path, program)
    assert not (tmp_path / "out").exists()
