"""`psfleet export`: what it writes, prints and refuses."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.command_line import Psfleet
from support.exported_run import BIAS, KERNEL, trained, with_checkpoint

from psfleet.checkpoint.versions import Request, find
from psfleet.cli import exports
from psfleet.cli.exports import default_secs
from psfleet.errors import NO_CHECKPOINT, ProgramError
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


@pytest.mark.parametrize(("options", "code", "steps"), [([], 0, [0, 4]), (["--step", "0"], 65, [0])])
def test_the_newest_checkpoint_is_found_again_after_it_was_deleted(
    psfleet: Psfleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], code: int, steps: list[int]
) -> None:
    exported: list[int] = []

    def export(module: str, folder: str, given: str, does: str, secs: float) -> str:
        checkpoint = Path(Request.model_validate_json(given).checkpoint)
        exported.append(int(checkpoint.name.partition("-")[0]))
        if exported == [0]:
            with_checkpoint(tmp_path, 4, KERNEL, BIAS)
            shutil.rmtree(checkpoint)
            error = ProgramError(f"checkpoint {checkpoint} has no manifest.json")
            error.exit_code = NO_CHECKPOINT
            raise error
        Path(folder, "model").touch()
        return "verified"

    trained(tmp_path)
    monkeypatch.setattr(exports, "summary_of", export)
    said = psfleet("export", ".", "--out", "served", *options)
    assert (said.code, exported) == (code, steps), said.err
    assert Path("served/4/model").is_file() is (code == 0)
