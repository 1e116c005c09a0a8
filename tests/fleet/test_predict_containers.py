"""The driver of a prediction and its workers as containers run them: processes that know each other by an address."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest
from support import commands
from support.exported_run import trained
from support.programs import predicted_data
from support.service_process import Service, running
from support.swept_study import END_SECS, SweptStudy

from psfleet.job.prediction_order import PredictionOrder
from psfleet.polling import wait_until
from psfleet.processes.ports import free_addresses
from psfleet.tls import certificates

OUT = "out.npz"


class Predicted:
    """A run folder with a program, whose data set is predicted by containers.

    Attributes:
        folder: The run folder, and that of the program.
        results: The driver's folder.
        source: What is predicted from.
    """

    def __init__(self, folder: Path, data: str = "held", source: Path | None = None) -> None:
        self.folder, self.results, self.source = folder, folder / "results", source or folder
        self.results.mkdir()
        shutil.copy(predicted_data.__file__, folder)
        (self.address,) = free_addresses(1)
        self._order = PredictionOrder(source=str(self.source), data=f"predicted_data:{data}", out=OUT, workers=2)
        self._own = {"RUN": "predicted"}

    @classmethod
    def of_run(cls, folder: Path, data: str = "held") -> Predicted:
        return cls(trained(folder, deadlines={"step_secs": 3}), data)

    def with_tls(self) -> Predicted:
        certificates.make(self.folder / "certificates")
        self._own["TLS"] = str(self.folder / "certificates" / "worker")
        return self

    @contextmanager
    def driver(self) -> Iterator[Service]:
        """The container of the driver."""
        order = {"PREDICTION": self._order.model_dump_json()}
        module = "psfleet.predictions"
        with running("driver", self.results, self.address, module=module, **self._own, **order) as process:
            yield process

    @contextmanager
    def worker(self, index: int) -> Iterator[Service]:
        """The container of a worker, with a disk of its own."""
        disk = self.folder / f"disk-{index}"
        disk.mkdir(exist_ok=True)
        own = {"DRIVER": self.address.data, "PROGRAM_FOLDER": str(self.folder), "INDEX": str(index)}
        with running("worker", disk, module="worker_service.predictions", **self._own, **own) as process:
            yield process

    @property
    def kept(self) -> Path:
        """The hidden folder of the driver."""
        return self.results / f".{OUT}-shares"

    def readers(self) -> list[int]:
        """Process ids of all readings of the data set."""
        path = self.folder / "readers"
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    def require_results(self) -> None:
        """Checks that the file is that of the command, and that nothing else is left."""
        arguments = ("--data", self._order.data, "--out", "local.npz", "--workers", "2")
        done = commands.psfleet(self.folder, "predict", str(self.source), *arguments, timeout_secs=END_SECS)
        assert done.returncode == 0, done.stdout + done.stderr
        assert (self.results / OUT).read_bytes() == (self.folder / "local.npz").read_bytes()
        assert not self.kept.exists()
        for disk in self.folder.glob("disk-*"):
            assert {path.suffix for path in disk.iterdir()} == {".txt"}, "logs alone"


def messages(process: Service) -> list[str]:
    return [entry["message"] for entry in process.entries()]


def test_the_share_of_a_killed_worker_is_predicted_again(tmp_path: Path) -> None:
    predicted = Predicted.of_run(tmp_path).with_tls()
    (tmp_path / "hold").touch()
    with predicted.driver() as driver, predicted.worker(1) as other:
        with predicted.worker(0):
            wait_until(lambda: len(predicted.readers()) == 2, END_SECS, "both workers")
        (tmp_path / "hold").unlink()
        with predicted.worker(0) as replacement:
            assert [each.exit_code(END_SECS) for each in (driver, replacement, other)] == [0, 0, 0]
    text = "worker 0 died (another process has taken its place) and is started again; its share is predicted again"
    assert text in messages(driver)
    assert "predictions float32 [10, 3] of step 0, by 2 workers" in messages(driver)[-1]
    predicted.require_results()


@pytest.mark.extended
def test_a_frozen_worker_is_refused_when_it_continues(tmp_path: Path) -> None:
    predicted = Predicted.of_run(tmp_path)
    (tmp_path / "hold").touch()
    with predicted.driver() as driver, predicted.worker(0) as frozen, predicted.worker(1) as other:
        wait_until(lambda: len(predicted.readers()) == 2, END_SECS, "both workers")
        frozen.freeze()
        wait_until(lambda: "no sign of life for 3 s" in driver.output.read_text(), END_SECS, "the silence")
        frozen.freeze(signal.SIGCONT)
        assert frozen.exit_code(END_SECS) == 75
        assert "worker 0 was replaced by another process" in messages(frozen)
        (tmp_path / "hold").unlink()
        with predicted.worker(0) as replacement:
            assert [each.exit_code(END_SECS) for each in (driver, replacement, other)] == [0, 0, 0]
    predicted.require_results()


@pytest.mark.extended
@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_driver_that_is_started_again_has_the_complete_shares(tmp_path: Path, is_replaced: bool) -> None:
    predicted = Predicted.of_run(tmp_path)
    with ExitStack() as stack:
        with ExitStack() as killed:
            first = (killed if is_replaced else stack).enter_context(predicted.worker(0))
            killed.enter_context(predicted.driver())
            wait_until(lambda: (predicted.kept / "share-0.json").exists(), END_SECS, "the share")
        if is_replaced:
            first = stack.enter_context(predicted.worker(0))
        with predicted.driver() as driver, predicted.worker(1) as second:
            assert [each.exit_code(END_SECS) for each in (driver, first, second)] == [0, 0, 0]
    assert len(predicted.readers()) == 2, "no share was predicted twice"
    predicted.require_results()


@pytest.mark.extended
def test_a_worker_whose_share_was_lost_by_the_driver_predicts_it_again(tmp_path: Path) -> None:
    predicted = Predicted.of_run(tmp_path)
    with predicted.worker(0) as first:
        with predicted.driver():
            wait_until(lambda: (predicted.kept / "share-0.json").exists(), END_SECS, "the share")
        shutil.rmtree(predicted.kept)
        with predicted.driver() as driver, predicted.worker(1) as second:
            assert first.exit_code(END_SECS) == 75
            with predicted.worker(0) as replacement:
                assert [each.exit_code(END_SECS) for each in (driver, replacement, second)] == [0, 0, 0]
    assert "the driver has begun again without the share of this worker" in messages(first)
    predicted.require_results()


@pytest.mark.extended
def test_a_data_set_that_ends_its_process_ends_the_prediction(tmp_path: Path) -> None:
    predicted = Predicted.of_run(tmp_path)
    (tmp_path / "end").write_text("0")
    with predicted.driver() as driver, predicted.worker(0) as first, predicted.worker(1) as second:
        assert [each.exit_code(END_SECS) for each in (driver, first, second)] == [70, 70, 70]
    (failure,) = driver.failures()
    assert "with exit code 0, expected it to return" in failure["message"]


@pytest.mark.extended
@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("failing", "reading the data set raised ValueError: no more rows"),
        ("differing", "the workers have read different data"),
    ],
)
def test_a_data_set_that_fails_ends_driver_and_workers(tmp_path: Path, data: str, message: str) -> None:
    predicted = Predicted.of_run(tmp_path, data)
    with predicted.driver() as driver, predicted.worker(0) as first, predicted.worker(1) as second:
        assert [each.exit_code(END_SECS) for each in (driver, first, second)] == [70, 70, 70]
    (failure,) = driver.failures()
    assert message in failure["message"]
    assert {path.suffix for path in predicted.results.iterdir()} == {".txt"}


@pytest.mark.extended
def test_the_best_trial_of_a_study_predicts_in_containers(tmp_path: Path) -> None:
    study = SweptStudy.make(tmp_path, {"optimizer.learning_rate": {"choice": [0.01, 0.2]}}, {"predicts": True}, keep=1)
    assert study.run().returncode == 0
    predicted = Predicted(tmp_path, "numbers", study.out)
    with predicted.driver() as driver, predicted.worker(0) as first, predicted.worker(1) as second:
        assert [each.exit_code(END_SECS) for each in (driver, first, second)] == [0, 0, 0]
    with np.load(predicted.results / OUT) as found:
        assert len(found["predictions"]) == 3
    predicted.require_results()
