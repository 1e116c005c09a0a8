"""The driver of a prediction in a container: what it refuses to begin."""

from __future__ import annotations

import json
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.driver_control import CALL_SECS, RUN

from psfleet.control.driver_client import DriverClient
from psfleet.driver import containers
from psfleet.errors import BadJobError, NoCheckpointError, UsageError
from psfleet.predictions import files
from psfleet.predictions.__main__ import serve
from psfleet.processes.ports import free_addresses
from psfleet.service import settings
from psfleet.service.process import Stop

ORDER = {"source": "/no/run", "data": "data:set", "out": "out.npz", "workers": 2}


def environment(folder: Path, **changes: Any) -> dict[str, str]:
    """Of a driver."""
    (address,) = free_addresses(1)
    order = json.dumps(ORDER | changes)
    return {
        settings.PREDICTION: order, settings.OUT: str(folder), settings.ADDRESS: address.data, settings.RUN: RUN
    }  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({}, NoCheckpointError, "/no/run: no such file or folder"),
        ({"out": "../out.npz"}, UsageError, "expected the name of a file, without a folder"),
        ({"out": "/out.npz"}, UsageError, "expected the name of a file, without a folder"),
        ({"out": "out.csv"}, UsageError, "expected a name that ends in .npz or .parquet"),
        ({"out": "out.parquet"}, UsageError, "--out out.parquet: pyarrow is not installed, expected container.worker_"),
        ({"data": "data"}, UsageError, "expected MODULE:CALLABLE"),
        ({"workers": 0}, BadJobError, "PSFLEET_PREDICTION: expected what to predict as JSON"),
        ({"top": 1}, BadJobError, "PSFLEET_PREDICTION: expected what to predict as JSON"),
    ],
)
def test_what_cannot_be_predicted_is_refused(
    tmp_path: Path,
    stop: Stop,
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, Any],
    error: type[Exception],
    text: str,
) -> None:
    monkeypatch.setattr(containers, "JOIN_SECS", 0.1)
    monkeypatch.setattr(files, "find_spec", lambda name: None)
    with pytest.raises(error, match=text):
        serve(settings.read(environment(tmp_path, **changes)), stop)
    assert not list(tmp_path.iterdir())


def test_the_workers_of_a_refused_prediction_end_with_its_exit_code(tmp_path: Path, stop: Stop) -> None:
    own = settings.read(environment(tmp_path, workers=1))

    def refused() -> None:
        with suppress(NoCheckpointError):
            serve(own, stop)

    driver = threading.Thread(target=refused)
    driver.start()
    client = DriverClient(own.address, RUN, 0, CALL_SECS, None)
    assert client.join() == 65
    driver.join(CALL_SECS)
    assert not driver.is_alive()


def test_a_driver_without_anything_to_predict_is_refused(stop: Stop) -> None:
    with pytest.raises(BadJobError, match="PSFLEET_PREDICTION is missing"):
        serve(settings.read({}), stop)
