"""`psfleet export`: what it writes, prints and refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.command_line import Psfleet
from support.exported_run import trained


@pytest.mark.extended  # 4 s: TensorFlow is imported once more
def test_the_command_exports_in_a_process_of_its_own(psfleet: Psfleet, tmp_path: Path) -> None:
    said = psfleet("export", str(trained(tmp_path)), "--out", "served")
    assert (said.code, said.err) == (0, "")
    assert said.out.startswith("served/0: saved_model of step 0, ")
    assert said.out.endswith(" bytes; predictions of 1 examples verified\n")
    assert Path("served/0/saved_model.pb").is_file()
    said = psfleet("export", str(tmp_path), "--out", "served")
    assert (said.code, said.err.count("\n")) == (64, 1)


def test_an_unknown_format_of_the_command_is_refused(psfleet: Psfleet, tmp_path: Path) -> None:
    said = psfleet("export", str(tmp_path), "--out", "out", "--format", "onnx")
    assert (said.code, said.err.split(":")[1]) == (64, " --format onnx")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--format", "keras", "--quantize", "int8"], "--quantize and --max-loss need --format litert"),
        (["--max-loss", "1"], "--quantize and --max-loss need --format litert"),
        (["--format", "litert", "--quantize", "int4"], "--quantize int4: expected int8"),
        (["--format", "litert", "--calibrate", "9"], "--calibrate 9 needs --quantize int8"),
    ],
)
def test_options_that_do_not_fit_the_format_are_refused(psfleet: Psfleet, options: list[str], message: str) -> None:
    said = psfleet("export", "run", "--out", "out", *options)
    assert (said.code, said.err.count("\n")) == (64, 1)
    assert message in said.err
