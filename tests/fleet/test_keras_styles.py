"""Each model style that users write trains on a fleet, and its exported weights are a plain Keras model.

tests/unit/worker_service/frontends/test_keras_styles.py compares the steps of more styles with those of Keras.
"""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import pytest
from support.trained_styles import PROGRAMS

import psfleet
from psfleet.checkpoint import store
from psfleet.checkpoint.export import export
from psfleet.checkpoint.manifest import read_manifest
from psfleet.checkpoint.tensors import read_tensors

pytestmark = [
    pytest.mark.usefixtures("launches_forked"),
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning:keras"),  # Keras 3.15 with NumPy 2.
    pytest.mark.filterwarnings("ignore:`build.*` was called on layer 'two_towers"),
]
TESTS = Path(__file__).parents[1]

STEPS = 4
BATCH = 3
QUICK = ("normalized",)
"""Styles whose rows `make test` runs."""
TWO_PS = ("mobile_net_v2", "dictionaries")
"""Styles that train on two ps: how a model is cut does not depend on its style."""
KEPT = {
    "normalized": {"normalization/mean", "normalization/variance", "normalization/count"},
    "frozen": {
        *(
            "sequential/conv2d/kernel",
            "sequential/conv2d/bias",
            "sequential/batch_normalization/gamma",
            "sequential/batch_normalization/beta",
        ),
        *("sequential/batch_normalization/moving_mean", "sequential/batch_normalization/moving_variance"),
    },
}
"""By style, the tensors that no step changes; all others change."""
WEIGHTS_ONLY = ("subclassed",)
"""Styles whose class has no `get_config`, so that Keras makes the model by the program's own code."""


@pytest.mark.parametrize(
    "style",
    [style if style in QUICK else pytest.param(style, marks=pytest.mark.extended) for style in PROGRAMS],
)
def test_a_model_of_any_style_trains_on_a_fleet(style: str, ps_addresses: list[str], tmp_path: Path) -> None:
    num_ps = 2 if style in TWO_PS else 1
    job = {
        "name": style.replace("_", "-"),
        "program": "support.programs.keras_style_program:build",
        "options": {"style": style},
        "fleet": {"ps": num_ps, "workers": 1, "ps_addresses": ps_addresses[:num_ps]},
        "update": {"bucket_bytes": 4096},
        "optimizer": {"name": "adam", "learning_rate": 0.01},
        "train": {"steps": STEPS, "batch_size": BATCH},
        "device": {"intra_op_threads": 1},
    }
    report = psfleet.train(job, out=tmp_path, program_folder=TESTS)
    assert (report.status, report.final_step) == ("done", STEPS), report.error
    assert report.gradients.used == STEPS
    last, first = store.folders(tmp_path / "checkpoints")
    before, after = (read_tensors(read_manifest(folder)) for folder in (first, last))
    same = {name for name, value in after.items() if value.tobytes() == before[name].tobytes()}
    assert same == KEPT.get(style, set())
    assert all(np.isfinite(value).all() for value in after.values())
    assert plain_metrics(style, tmp_path) == pytest.approx(report.eval, rel=1e-5, abs=1e-6)


def plain_metrics(style: str, run: Path) -> dict[str, float]:
    """The metrics of the exported model, which Keras loads and evaluates without psfleet."""
    program = PROGRAMS[style]()
    data = program.evaluate().batch(BATCH)
    if style in WEIGHTS_ONLY:
        export(run, run / "model.weights.h5")
        model = program.model()
        model(next(iter(data))[0])
        model.load_weights(run / "model.weights.h5")
    else:
        export(run, run / "model.keras")
        model = keras.saving.load_model(run / "model.keras", compile=False, safe_mode=False)
    model.compile(loss=program.loss, metrics=program.metrics, run_eagerly=True)
    metrics: dict[str, float] = model.evaluate(data, return_dict=True, verbose=0)
    return metrics
