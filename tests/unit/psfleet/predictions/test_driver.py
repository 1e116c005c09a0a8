"""The driver of a prediction with workers that have no process: shares, deaths and failures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from support.predicted_share import VALUES, write_share
from support.scripted_worker import ScriptedWorker

from psfleet import errors
from psfleet.errors import LostPeerError, ProgramError, PsfleetError, UsageError
from psfleet.job.prediction_files import Request
from psfleet.job.sections import Deadlines
from psfleet.predictions.driver import drive, require_callable

WORKERS = 2
REQUEST = Request(job="{}", checkpoint="/run", data="data:set", workers=WORKERS, attempt="first")


class Driven:
    """A driver whose workers do what a script says, one step at each look."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.out = folder, folder / "out.npz"
        self.processes = [ScriptedWorker(index) for index in range(WORKERS)]
        self.lost: list[str] = []
        self.released_with = errors.DONE

    def write(self, *indices: int, attempt: str = "first", checksum: int = 5) -> Callable[[], None]:
        """The step in which these workers complete their shares."""
        return lambda: [write_share(self.folder, index, WORKERS, attempt, checksum) for index in indices] and None

    def end(self, index: int, code: int, failure: str = "") -> Callable[[], None]:
        """The step in which the process of a worker ends."""
        return lambda: self.processes[index].end(code, failure)

    def run(self, *script: Callable[[], None]) -> None:
        steps = iter(script)

        def check() -> None:
            step = next(steps, None)
            assert step is not None, "the driver waits after the last step"
            step()

        drive(REQUEST, Deadlines(), self.folder, self.out, self._recruited(), self.lost.append, check)

    @contextmanager
    def _recruited(self) -> Iterator[list[ScriptedWorker]]:
        try:
            yield self.processes
        except PsfleetError as error:
            self.released_with = error.exit_code
            raise

    def require_file(self) -> None:
        with np.load(self.out) as found:
            np.testing.assert_array_equal(found["predictions"], VALUES)


def test_the_file_has_the_shares_of_all_workers(tmp_path: Path) -> None:
    driven = Driven(tmp_path)
    seen: list[Sequence[int]] = []

    def look() -> None:
        assert not driven.out.exists()
        seen.append(Request.read(tmp_path).complete)

    driven.run(driven.write(1), lambda: None, look, driven.write(0))
    driven.require_file()
    assert seen == [(1,)]
    assert Request.read(tmp_path).complete == (0, 1)
    assert not driven.lost
    assert all(process.is_closed for process in driven.processes)


def test_a_share_of_an_earlier_attempt_is_not_used(tmp_path: Path) -> None:
    driven = Driven(tmp_path)
    driven.write(0, 1, attempt="other")()
    driven.run(lambda: None, driven.write(0, 1))
    driven.require_file()


def test_shares_that_are_there_need_no_worker(tmp_path: Path) -> None:
    driven = Driven(tmp_path)
    driven.write(0, 1)()
    driven.run()
    driven.require_file()


def test_a_worker_that_died_is_started_again_and_one_that_is_done_is_not(tmp_path: Path) -> None:
    driven = Driven(tmp_path)
    driven.run(driven.end(0, 137), driven.write(1), driven.end(1, errors.DONE), driven.write(0))
    driven.require_file()
    assert driven.lost == ["worker 0 died (killed by SIGKILL) and is started again; its share is predicted again"]
    assert [len(process.causes) for process in driven.processes] == [2, 1]


@pytest.mark.parametrize("code", [errors.PROGRAM_FAILED, errors.NO_CHECKPOINT, errors.BUG])
def test_a_failure_that_would_recur_is_that_of_the_command(tmp_path: Path, code: int) -> None:
    driven = Driven(tmp_path)
    with pytest.raises(PsfleetError, match="no more rows") as caught:
        driven.run(driven.end(0, code, "no more rows"))
    assert caught.value.exit_code == code
    assert all(process.is_closed for process in driven.processes)
    assert not driven.out.exists()


@pytest.mark.parametrize("code", [errors.DONE, 3])
def test_a_program_that_ends_its_worker_ends_the_command(tmp_path: Path, code: int) -> None:
    driven = Driven(tmp_path)
    with pytest.raises(ProgramError, match=f"the program ended worker 1 with exit code {code}, expected it to return"):
        driven.run(driven.end(1, code))


def test_a_worker_that_dies_again_and_again_ends_the_command(tmp_path: Path) -> None:
    driven = Driven(tmp_path)
    with pytest.raises(LostPeerError, match="worker 0 died 4 times, last: the disk is full"):
        driven.run(*[driven.end(0, errors.LOST_PEERS, "the disk is full")] * 4)
    assert len(driven.lost) == 3


def test_different_data_are_an_error(tmp_path: Path) -> None:
    driven = Driven(tmp_path)
    with pytest.raises(ProgramError, match="the workers have read different data"):
        driven.run(driven.write(0), driven.write(1, checksum=6))
    assert not driven.out.exists()


def test_workers_learn_that_the_file_cannot_be_written(tmp_path: Path) -> None:
    driven = Driven(tmp_path)
    driven.out = tmp_path / "no" / "out.npz"
    with pytest.raises(UsageError, match=r"--out .*no/out.npz cannot be written: No such file or directory"):
        driven.run(driven.write(0, 1))
    assert driven.released_with == errors.USAGE


@pytest.mark.parametrize("data", ["data", "data:", ":set", "da-ta:set", "data:set()"])
def test_a_text_that_names_no_callable_is_refused(data: str) -> None:
    require_callable("package.data:set")
    with pytest.raises(UsageError, match="expected MODULE:CALLABLE"):
        require_callable(data)
