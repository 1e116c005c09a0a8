"""The driver of a prediction in a container: what it refuses to begin."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from psfleet.errors import BadJobError, NoCheckpointError, UsageError
from psfleet.predictions.__main__ import serve
from psfleet.service import settings
from psfleet.service.process import Stop

ORDER = {"source": "/no/run", "data": "data:set", "out": "out.npz", "workers": 2}


@pytest.fixture
def stop() -> Iterator[Stop]:
    made = Stop()
    yield made
    made.listener.uninstall()


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({}, NoCheckpointError, "/no/run: no such file or folder"),
        ({"out": "../out.npz"}, UsageError, "expected the name of a file, without a folder"),
        ({"out": "/out.npz"}, UsageError, "expected the name of a file, without a folder"),
        ({"out": "out.csv"}, UsageError, "expected a name that ends in .npz or .parquet"),
        ({"data": "data"}, UsageError, "expected MODULE:CALLABLE"),
        ({"workers": 0}, BadJobError, "PSFLEET_PREDICTION: expected what to predict as JSON"),
        ({"top": 1}, BadJobError, "PSFLEET_PREDICTION: expected what to predict as JSON"),
    ],
)
def test_what_cannot_be_predicted_is_refused(
    tmp_path: Path, stop: Stop, changes: dict[str, Any], error: type[Exception], text: str
) -> None:
    environ = {settings.PREDICTION: json.dumps(ORDER | changes), settings.OUT: str(tmp_path)}
    with pytest.raises(error, match=text):
        serve(settings.read(environ), stop)
    assert not list(tmp_path.iterdir())


def test_a_driver_without_anything_to_predict_is_refused(stop: Stop) -> None:
    with pytest.raises(BadJobError, match="PSFLEET_PREDICTION is missing"):
        serve(settings.read({}), stop)
