"""What a job makes of the checkpoints that are there.

A finished run is not trained again. Checkpoints of another model, and damaged ones, are refused and left as they were.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.tiny_job import JOB, PRELUDE, entries, psfleet

from psfleet.checkpoint import store
from psfleet.checkpoint.manifest import MANIFEST
from psfleet.report.schema import Report

PROGRAM = (
    PRELUDE
    + """
def build():
    return psfleet.GraphProgram(loss=loss, train=data, evaluate=lambda: data(0, 1))
"""
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which a run of 4 steps was done; it has checkpoints of steps 0, 2 and 4."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "job.yaml").write_text(JOB + "checkpoint: {every_steps: 2}\n")
    (folder / "program.py").write_text(PROGRAM)
    said = psfleet(folder, "train", "job.yaml", "--out", "out", "--set", "train.steps=4")
    assert said.returncode == 0, said
    assert len(list((folder / "out" / "checkpoints").iterdir())) == 3
    return folder


@pytest.fixture
def folder(trained: Path, tmp_path: Path) -> Iterator[Path]:
    """A copy of it, to be spoilt."""
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    yield tmp_path
    if (tmp_path / "out" / "logs").exists():
        assert not [path for path in (tmp_path / "out").rglob("*") if "tmp" in path.name], "half-written"


WIDER = 'tf.reduce_sum(tf.compat.v1.get_variable("w", [2, 3]), 1)'


def files(folder: Path) -> dict[str, bytes]:
    """Every file of every checkpoint."""
    root = folder / "out" / "checkpoints"
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def check_refusal(folder: Path, code: int, *expected: str) -> None:
    """Training on is refused with one line, a report and one end of each process; no checkpoint changes."""
    before, report_before = files(folder), Report.read(folder / "out")
    said = psfleet(folder, "train", "job.yaml", "--out", "out")
    assert said.returncode == code, said
    assert "Traceback" not in said.stdout + said.stderr
    [line] = [line for line in said.stdout.splitlines() if line.startswith("error:")]
    report = Report.read(folder / "out")
    assert (report.status, report.exit_code, report.restarts) == ("failed", code, 0)
    check_counts_kept(report, report_before)
    assert [each.exit_code for each in report.attempts] == [0, code]
    for text in expected:
        assert text in line
        assert text in (report.error or "")
    for log in (folder / "out" / "logs").iterdir():
        assert [entry["exit_code"] for entry in entries(log) if "exit_code" in entry] == [code], log
    assert files(folder) == before


@pytest.mark.extended
def test_a_model_of_another_shape_than_the_checkpoint_is_refused(folder: Path) -> None:
    """The message names the tensor and both shapes."""
    program = folder / "program.py"
    program.write_text(PROGRAM.replace('tf.compat.v1.get_variable("w", [2])', WIDER))
    check_refusal(folder, 78, "tensor 'w' is float32 [2]", "00000004-g1", "[2, 3]", "--fresh")


def check_counts_kept(report: Report, before: Report) -> None:
    """An attempt that trained nothing leaves what the one before it measured."""
    assert before.gradients.pushed >= before.target_step
    for name in ("final_step", "gradients", "placement", "loss", "step_secs", "seconds", "examples_per_sec"):
        assert getattr(report, name) == getattr(before, name), name
    first = report.attempts[0]
    assert (first.first_step, first.final_step) == (0, before.final_step)


def test_a_finished_run_is_not_trained_again(folder: Path) -> None:
    """Nothing is started if nothing has changed; a changed program is evaluated."""
    before = Report.read(folder / "out")
    again = ("train", "job.yaml", "--out", "out", "--set", "train.steps=4")
    said = psfleet(folder, *again)
    assert said.returncode == 0, said
    assert "tiny: done already, step 4 is saved in " in said.stdout
    assert Report.read(folder / "out") == before
    (folder / "program.py").write_text(PROGRAM + "# changed\n")
    said = psfleet(folder, *again)
    assert said.returncode == 0, said
    report = Report.read(folder / "out")
    check_counts_kept(report, before)
    assert (report.status, [each.status for each in report.attempts]) == ("done", ["done", "done"])
    assert (report.attempts[1].first_step, report.attempts[1].final_step) == (4, 4)
    newest = store.newest(folder / "out" / "checkpoints")
    assert newest is not None
    assert report.checkpoint is not None
    assert report.checkpoint.path == str(newest.folder)
    assert report.eval.keys() == {"loss"}
    assert not [
        entry for entry in entries(folder / "out" / "logs" / "worker-0.log") if entry.get("event") == "progress"
    ]


def test_training_does_not_begin_again_where_every_checkpoint_is_damaged_unless_the_run_is_fresh(folder: Path) -> None:
    """Three kinds of damage: a part cut short, a part of other bytes, a manifest that is none."""
    first, second, third = sorted((folder / "out" / "checkpoints").iterdir())
    [part] = first.glob("*.safetensors")
    part.write_bytes(part.read_bytes()[:-1])
    [part] = second.glob("*.safetensors")
    part.write_bytes(part.read_bytes()[:-1] + b"\x55")
    (third / MANIFEST).write_text("{}")
    check_refusal(folder, 65, f"none of the 3 checkpoints in {folder}/out/checkpoints is valid")
    said = psfleet(folder, "train", "job.yaml", "--out", "out", "--set", "train.steps=4", "--fresh")
    assert said.returncode == 0, said
    report = Report.read(folder / "out")
    assert (report.status, report.final_step, report.generation, len(report.attempts)) == ("done", 4, 1, 1)
    newest = store.newest(folder / "out" / "checkpoints")
    assert newest is not None
    assert (newest.step, newest.generation) == (4, 1)


def test_a_damaged_newest_checkpoint_is_skipped_and_told(folder: Path) -> None:
    newest = sorted((folder / "out" / "checkpoints").iterdir())[-1]
    [part] = newest.glob("*.safetensors")
    part.write_bytes(part.read_bytes()[:-1])
    said = psfleet(folder, "train", "job.yaml", "--out", "out", "--set", "train.steps=6")
    assert said.returncode == 0, said
    messages = [entry["message"] for entry in entries(folder / "out" / "logs" / "worker-0.log")]
    assert f"skipped an invalid checkpoint: checkpoint {newest}: {part.name} has 215 bytes, expected 216" in messages
    assert any(message.startswith("restoring from step 2;") for message in messages)
    found = store.newest(folder / "out" / "checkpoints")
    assert found is not None
    assert (found.step, found.generation) == (6, 2)
