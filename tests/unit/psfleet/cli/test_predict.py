"""`psfleet predict` refuses what it cannot use before any process starts."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.command_line import Psfleet
from support.exported_run import trained

from psfleet.sweep.database import DATABASE, opened, optuna_module


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--data", "no_colon", "--out", "o.npz"], "--data no_colon: expected MODULE:CALLABLE"),
        (["--data", "module:", "--out", "o.npz"], "--data module:: expected MODULE:CALLABLE"),
        (["--data", "m:c", "--out", "o.csv"], "--out o.csv: expected a name that ends in .npz or .parquet"),
        (["--data", "m:c", "--out", "o.npz", "--step", "7"], "--step 7: . has no checkpoint of that step"),
        (["--data", "m:c", "--out", "o.npz", "--best"], "--best: the job of . has no checkpoint.best"),
    ],
)
def test_options_that_fit_no_run_are_refused(
    psfleet: Psfleet, tmp_path: Path, options: list[str], message: str
) -> None:
    trained(tmp_path)
    said = psfleet("predict", ".", *options)
    assert (said.code, said.err.count("\n")) == (64, 1), said.err
    assert message in said.err


def test_a_folder_without_a_checkpoint_has_exit_code_65(psfleet: Psfleet) -> None:
    said = psfleet("predict", ".", "--data", "m:c", "--out", "o.npz")
    assert (said.code, said.err.count("\n")) == (65, 1), said.err
    assert "no checkpoint there" in said.err


def test_a_study_without_a_complete_trial_is_refused(psfleet: Psfleet, tmp_path: Path) -> None:
    storage = opened(tmp_path / DATABASE)
    said = psfleet("predict", ".", "--data", "m:c", "--out", "o.npz")
    assert (said.code, said.err) == (64, "psfleet: . has 0 studies, expected one\n")
    optuna_module().create_study(storage=storage, study_name="digits")
    said = psfleet("predict", ".", "--data", "m:c", "--out", "o.npz")
    assert (said.code, said.err.count("\n")) == (64, 1), said.err
    assert "the best trial has no weights, expected a study with a complete trial" in said.err
    said = psfleet("predict", ".", "--data", "m:c", "--out", "o.npz", "--best")
    assert "whose best trial is used, expected neither --step nor --best" in said.err
