"""Keras models of the styles that are hardest to distribute train on a fleet, are saved and evaluated.

tests/unit/worker_service/frontends/test_keras_styles.py compares models of all styles with Keras.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.standing_ps import standing_ps

import psfleet

pytestmark = pytest.mark.usefixtures("launches_forked")
TESTS = Path(__file__).parents[1]

STEPS = 6
NUM_PS = 2


@pytest.fixture(scope="module")
def ps_addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    with standing_ps(NUM_PS, tmp_path_factory.mktemp("ps")) as addresses:
        yield addresses


@pytest.mark.parametrize("style", ["several", "two_towers"])
def test_a_model_of_any_style_trains_on_a_fleet(style: str, ps_addresses: list[str], tmp_path: Path) -> None:
    job = {
        "name": style.replace("_", "-"),
        "program": "support.programs.keras_style_program:build",
        "options": {"style": style},
        "fleet": {"ps": NUM_PS, "workers": 1, "ps_addresses": ps_addresses},
        "update": {"bucket_bytes": 4096},
        "optimizer": {"name": "adam", "learning_rate": 0.01},
        "train": {"steps": STEPS, "batch_size": 3},
        "device": {"intra_op_threads": 1},
    }
    report = psfleet.train(job, out=tmp_path, program_folder=TESTS)
    assert (report.status, report.final_step) == ("done", STEPS), report.error
    assert report.gradients.used == STEPS
    assert report.eval is not None
    assert {"loss", "label_accuracy"} <= report.eval.keys()
