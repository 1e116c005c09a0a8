"""A worker of a container whose share is complete: it waits for the end of its driver."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.driver_control import CALL_SECS, ServedDriver, served_driver

from psfleet.control import prompt_stream
from psfleet.errors import LostPeerError, PsfleetError, ReplacedError, StoppedError
from psfleet.job.prediction_files import Request
from psfleet.job.sections import Deadlines
from psfleet.service.process import Stop
from worker_service.driver_link import ContainerLink
from worker_service.predictions import service
from worker_service.trial.signs_of_life import SignsOfLife

BEFORE = Request(job="{}", checkpoint="checkpoint", data="data:set", workers=2, attempt="first")
AGAIN = BEFORE.model_copy(update={"attempt": "second"})


class Staying:
    """The main thread of a worker that waits.

    Attributes:
        stop: Of the worker.
        looks: Set after each look at the driver.
    """

    def __init__(self, driver: ServedDriver, folder: Path, stop: Stop) -> None:
        self.stop, self.looks = stop, threading.Event()
        self._link = ContainerLink(driver.client(), folder, Deadlines())
        self._fetch, self._link.fetch = self._link.fetch, self._look  # type: ignore[method-assign]
        self._errors: list[PsfleetError] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def error(self) -> PsfleetError:
        """Waits for the error with which it ends."""
        self._thread.join(CALL_SECS)
        (error,) = self._errors
        return error

    def look(self) -> None:
        """Waits until it has looked."""
        self.looks.clear()
        assert self.looks.wait(CALL_SECS)

    def _look(self, name: str) -> Path:
        try:
            return self._fetch(name)
        finally:
            self.looks.set()

    def _run(self) -> None:
        try:
            service._stay(BEFORE, self._link, SignsOfLife(lambda: None), self.stop)
        except PsfleetError as error:
            self._errors.append(error)


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServedDriver]:
    monkeypatch.setattr(service, "STAY_SECS", 0.01)
    monkeypatch.setattr(prompt_stream, "PAUSE_SECS", 0.2)
    (tmp_path / "own").mkdir()
    with served_driver(tmp_path) as served:
        BEFORE.write(tmp_path)
        yield served


def test_it_ends_once_the_driver_has_begun_again(driver: ServedDriver, tmp_path: Path, stop: Stop) -> None:
    staying = Staying(driver, tmp_path / "own", stop)
    staying.look()
    BEFORE.model_copy(update={"complete": (0, 1)}).write(tmp_path)
    staying.look()
    AGAIN.write(tmp_path)
    error = staying.error()
    assert isinstance(error, LostPeerError)
    assert str(error) == "the driver has begun again without the share of this worker"


def test_it_ends_when_another_process_has_its_place(driver: ServedDriver, tmp_path: Path, stop: Stop) -> None:
    staying = Staying(driver, tmp_path / "own", stop)
    staying.look()
    driver.client().join()
    assert isinstance(staying.error(), ReplacedError)


def test_it_waits_for_a_driver_that_is_started_again(driver: ServedDriver, tmp_path: Path, stop: Stop) -> None:
    staying = Staying(driver, tmp_path / "own", stop)
    staying.look()
    driver.stop()
    staying.look()
    staying.look()
    staying.stop._receive(15)
    assert isinstance(staying.error(), StoppedError)
