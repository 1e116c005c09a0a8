"""The driver of a study in a container: what it refuses to begin."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path

from support.driver_control import CALL_SECS, RUN
from support.study_samples import advance, loaded

from psfleet.control.driver_client import DriverClient
from psfleet.errors import BadJobError
from psfleet.processes.ports import free_addresses
from psfleet.service import settings
from psfleet.service.process import Stop
from psfleet.sweep.__main__ import serve


def test_the_workers_of_a_refused_study_end_with_its_exit_code(tmp_path: Path, stop: Stop) -> None:
    (tmp_path / "out").mkdir()
    advance(loaded(tmp_path, name="another"), tmp_path / "out")
    (address,) = free_addresses(1)
    study = loaded(tmp_path, fleet={"workers": 1}).to_json()
    environment = {settings.STUDY: study, settings.OUT: str(tmp_path / "out"), settings.ADDRESS: address.data}
    own = settings.read({**environment, settings.RUN: RUN})

    def refused() -> None:
        with suppress(BadJobError):
            serve(own, stop)

    driver = threading.Thread(target=refused)
    driver.start()
    assert DriverClient(own.address, RUN, 0, CALL_SECS, None).join() == 78
    driver.join(CALL_SECS)
    assert not driver.is_alive()
