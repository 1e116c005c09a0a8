"""The driver of a study and its workers as containers run them: processes that know each other by an address alone."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import safetensors.numpy
from support.service_process import Service, running
from support.swept_study import END_SECS, SweptStudy

from psfleet.addresses import Address
from psfleet.polling import wait_until
from psfleet.processes.ports import free_addresses
from psfleet.sweep.loaded_study import load_study
from psfleet.sweep.workers import access_to

SPACE = {"optimizer.learning_rate": {"choice": [0.01, 0.02]}}


@contextmanager
def driver(study: SweptStudy, address: Address) -> Iterator[Service]:
    """The container of the driver."""
    loaded = load_study(study.folder / "study.yaml")
    study.out.mkdir(parents=True, exist_ok=True)
    own = {"RUN": "swept", "STUDY": loaded.to_json(), "PROGRAM_FOLDER": str(study.folder)}
    with running("study", study.out, address, module="psfleet.sweep", **own) as process:
        yield process


@contextmanager
def worker(study: SweptStudy, of: Address, folder: Path, index: int = 0) -> Iterator[Service]:
    """The container of a worker, with a disk of its own."""
    loaded = load_study(study.folder / "study.yaml")
    folder.mkdir(exist_ok=True)
    own = {"RUN": "swept", "TRIALS": access_to(loaded.study).model_dump_json(), "DRIVER": of.data}
    own |= {"PROGRAM_FOLDER": str(study.folder), "INDEX": str(index), "RECORDS": str(folder / ".ended")}
    own["JOB"] = loaded.job_of({}).model_dump_json()
    with running("worker", folder, module="worker_service.trial", **own) as process:
        yield process


@pytest.mark.extended
def test_trials_of_two_containers_have_the_weights_of_those_of_processes(tmp_path: Path) -> None:
    study = SweptStudy.make(tmp_path, SPACE, fleet={"workers": 2})
    assert study.run().returncode == 0
    expected = {path.name: safetensors.numpy.load_file(path) for path in (study.out / "weights").iterdir()}
    study.out.rename(tmp_path / "processes")
    (address,) = free_addresses(1)
    with (
        driver(study, address) as drives,
        worker(study, address, tmp_path / "0") as first,
        worker(study, address, tmp_path / "1", 1) as second,
    ):
        assert [each.exit_code(END_SECS) for each in (drives, first, second)] == [0, 0, 0]
    assert [row["state"] for row in study.rows()] == ["complete"] * 2
    found = {path.name: safetensors.numpy.load_file(path) for path in (study.out / "weights").iterdir()}
    assert found == expected
    assert len(found) == 2
    assert not list((tmp_path / "0").rglob("*.safetensors")), "the driver has them"


@pytest.mark.extended
def test_the_trial_of_a_container_that_died_is_repeated_by_its_replacement(tmp_path: Path) -> None:
    study = SweptStudy.make(tmp_path, SPACE)
    (tmp_path / "reads").touch()
    (tmp_path / "hold").touch()
    (address,) = free_addresses(1)
    with driver(study, address) as drives:
        with worker(study, address, tmp_path / "0"):
            wait_until(lambda: len(study.reads()) == 1, END_SECS, "the first trial")
        (tmp_path / "hold").unlink()
        with worker(study, address, tmp_path / "0") as replacement:
            assert drives.exit_code(END_SECS) == 0
            assert replacement.exit_code(END_SECS) == 0
    text = "worker 0 died (another process has taken its place) and is started again; trial 0 is lost"
    assert text in [entry["message"] for entry in drives.entries()]
    assert [row["state"] for row in study.rows()] == ["complete"] * 2


@pytest.mark.extended
def test_a_frozen_container_loses_its_trial_and_is_refused_when_it_continues(tmp_path: Path) -> None:
    study = SweptStudy.make(tmp_path, SPACE, deadlines={"step_secs": 3}, fleet={"workers": 2})
    (tmp_path / "reads").touch()
    (tmp_path / "hold").touch()
    (address,) = free_addresses(1)
    with driver(study, address) as drives, worker(study, address, tmp_path / "0") as frozen:
        wait_until(lambda: len(study.reads()) == 1, END_SECS, "the first trial")
        frozen.freeze()
        (tmp_path / "hold").unlink()
        with worker(study, address, tmp_path / "1", 1) as other:
            assert drives.exit_code(END_SECS) == 0
            assert other.exit_code(END_SECS) == 0
            frozen.freeze(signal.SIGCONT)
        assert len(set(study.reads())) == 2, "both trials were made by the other worker"
    assert [row["state"] for row in study.rows()] == ["complete"] * 2
    assert "0" not in [row["trial"] for row in study.rows()], "repeated under another number"


@pytest.mark.extended
def test_the_parent_of_a_frozen_process_ends_it_so_that_the_container_is_replaced(tmp_path: Path) -> None:
    study = SweptStudy.make(tmp_path, SPACE, deadlines={"step_secs": 3})
    (tmp_path / "reads").touch()
    (tmp_path / "hold").touch()
    (address,) = free_addresses(1)
    with driver(study, address) as drives:
        with worker(study, address, tmp_path / "0") as frozen:
            wait_until(lambda: len(study.reads()) == 1, END_SECS, "the first trial")
            os.kill(frozen.child(), signal.SIGSTOP)
            assert frozen.exit_code(END_SECS) == 75
        (tmp_path / "hold").unlink()
        with worker(study, address, tmp_path / "0") as replacement:
            assert drives.exit_code(END_SECS) == 0
            assert replacement.exit_code(END_SECS) == 0
    assert "worker 0 died (no sign of life for 3 s" in drives.output.read_text()
    assert [row["state"] for row in study.rows()] == ["complete"] * 2


@pytest.mark.extended
def test_a_program_that_ends_its_process_fails_its_trial_and_the_container_stays(tmp_path: Path) -> None:
    study = SweptStudy.make(tmp_path, {"options.end": {"choice": ["os._exit", ""]}})
    (address,) = free_addresses(1)
    with driver(study, address) as drives, worker(study, address, tmp_path / "0") as process:
        assert drives.exit_code(END_SECS) == 0
        assert process.exit_code(END_SECS) == 0
    found = {row["options.end"]: (row["state"], row["error"]) for row in study.rows()}
    assert found == {"": ("complete", ""), "os._exit": ("fail", "the program ended worker 0 with exit code 70")}


def test_workers_wait_for_a_driver_that_is_started_again(tmp_path: Path) -> None:
    study = SweptStudy.make(tmp_path, SPACE)
    (tmp_path / "reads").touch()
    (tmp_path / "hold").touch()
    (address,) = free_addresses(1)
    with worker(study, address, tmp_path / "0") as process:
        with driver(study, address):
            wait_until(lambda: len(study.reads()) == 1, END_SECS, "the first trial")
        with driver(study, address) as second:
            wait_until(lambda: "listening" in second.output.read_text(), END_SECS, "the second driver")
            (tmp_path / "hold").unlink()
            assert second.exit_code(END_SECS) == 0
            assert process.exit_code(END_SECS) == 0
    assert [row["state"] for row in study.rows()] == ["complete"] * 2
    assert len(set(study.reads())) == 1, "one process has made all trials"


@pytest.mark.parametrize("program", ["swept_program:missing"])
def test_a_program_that_fails_in_each_trial_ends_driver_and_workers(tmp_path: Path, program: str) -> None:
    study = SweptStudy.make(tmp_path, SPACE)
    job = (tmp_path / "job.yaml").read_text().replace("swept_program:build", program)
    (tmp_path / "job.yaml").write_text(job)
    (address,) = free_addresses(1)
    with driver(study, address) as drives, worker(study, address, tmp_path / "0") as process:
        assert drives.exit_code(END_SECS) == 70
        assert process.exit_code(END_SECS) == 70
    # Docker starts the worker again, which finds no driver.
    with worker(study, address, tmp_path / "0") as again:
        assert again.exit_code(END_SECS) == 70
    (end,) = again.failures()
    assert end["message"] == "it has ended with exit code 70"
    (failure,) = drives.failures()
    assert "missing" in failure["message"]
