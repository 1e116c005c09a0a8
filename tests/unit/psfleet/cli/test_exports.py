"""`psfleet export`: what it writes, prints and refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.command_line import Psfleet
from support.exported_run import trained

from psfleet.checkpoint.versions import find
from psfleet.cli.exports import default_secs
from psfleet.job.sections import Deadlines


@pytest.mark.extended  # 4 s: TensorFlow is imported once more
def test_the_command_exports_in_a_process_of_its_own(psfleet: Psfleet, tmp_path: Path) -> None:
    said = psfleet("export", str(trained(tmp_path)), "--out", "served")
    assert (said.code, said.err) == (0, "")
    assert said.out.startswith("served/0: saved_model of step 0, ")
    assert said.out.endswith(" bytes; predictions of 1 examples verified\n")
    assert Path("served/0/saved_model.pb").is_file()
    said = psfleet("export", str(tmp_path), "--out", "served")
    assert (said.code, said.err.count("\n")) == (64, 1)


def test_an_export_that_takes_too_long_ends_in_one_line_and_leaves_nothing(psfleet: Psfleet, tmp_path: Path) -> None:
    said = psfleet("export", str(trained(tmp_path)), "--out", "served", "--timeout-secs", "1")
    assert (said.code, said.err) == (
        75, "psfleet: gave up after 1 s waiting for the export of step 0 as saved_model\n"
    )  # fmt: skip
    assert not Path("served").exists()


def test_the_folder_of_a_study_is_refused_with_the_command_that_makes_a_run(psfleet: Psfleet) -> None:
    Path("studies/a b").mkdir(parents=True)
    Path("studies/a b/best.yaml").touch()
    said = psfleet("export", "studies/a b", "--out", "served")
    assert (said.code, Path("served").exists()) == (64, False)
    assert "`psfleet train 'studies/a b/best.yaml'` trains the best trial again" in said.err


def test_the_time_limit_of_an_export_is_that_of_its_job(tmp_path: Path) -> None:
    deadlines = Deadlines(start_secs=1, first_batch_secs=20, stall_secs=300)
    checkpoint = find(trained(tmp_path, deadlines=deadlines.model_dump()))
    assert default_secs(checkpoint) == 1 + 300 + 300


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
