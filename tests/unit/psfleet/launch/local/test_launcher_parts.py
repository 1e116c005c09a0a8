"""What the local launcher is made of: the run folder, free ports, entries of a log."""

from __future__ import annotations

import socket
from collections import deque
from contextlib import closing
from pathlib import Path

import pytest

from psfleet.errors import LostPeerError, UsageError
from psfleet.job.job import Job, parse_job
from psfleet.launch.local import ports
from psfleet.run_folder import RunFolder, claimed


@pytest.fixture
def job() -> Job:
    return parse_job(
        {
            "name": "tiny",
            "program": "program:build",
            "optimizer": {"name": "sgd", "learning_rate": 0.1},
            "train": {"steps": 10, "batch_size": 4},
        }
    )


LEFT_BY_A_RUN = ("checkpoints/00000010-g1/manifest.json", "tensorboard/events", "history.jsonl")
LEFT_BY_A_START = ("logs/ps-0.log", "events.jsonl", "report.json", "report.html")
OF_THE_USER = ("notes.txt", "logs/notes.txt", "data/examples.csv", "checkpoints-of-mine/a")


@pytest.fixture
def used(tmp_path: Path) -> Path:
    """A folder after a run, with files of the user's own."""
    for name in (*LEFT_BY_A_RUN, *LEFT_BY_A_START, *OF_THE_USER):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "job.json").write_text('{"name": "tiny"}')
    return tmp_path


def kept(folder: Path, names: tuple[str, ...]) -> list[str]:
    return [name for name in names if (folder / name).exists()]


def test_a_claimed_folder_has_the_job_and_a_place_for_logs(job: Job, tmp_path: Path) -> None:
    with claimed(tmp_path / "runs" / "tiny", job, fresh=False) as folder:
        assert folder == RunFolder((tmp_path / "runs" / "tiny").resolve())
        assert Job.model_validate_json(folder.job.read_text()) == job
        assert folder.log("ps", 1).parent.is_dir()
        assert folder.log("ps", 1).name == "ps-1.log"


def test_a_run_that_is_resumed_keeps_all_but_the_last_start(job: Job, used: Path) -> None:
    with claimed(used, job, fresh=False):
        assert kept(used, LEFT_BY_A_START) == []
        assert kept(used, (*LEFT_BY_A_RUN, *OF_THE_USER)) == [*LEFT_BY_A_RUN, *OF_THE_USER]


def test_a_fresh_run_deletes_what_runs_leave_and_nothing_of_the_users(job: Job, used: Path) -> None:
    with claimed(used, job, fresh=True):
        assert kept(used, (*LEFT_BY_A_RUN, *LEFT_BY_A_START)) == []
        assert kept(used, OF_THE_USER) == list(OF_THE_USER)


def test_a_folder_is_claimed_by_one_run_at_a_time_and_free_afterwards(job: Job, used: Path) -> None:
    with (
        claimed(used, job, fresh=False),
        pytest.raises(UsageError, match=f"--out {used}: another run is using it"),
        claimed(used, job, fresh=True),
    ):
        pytest.fail("claimed twice")
    assert kept(used, LEFT_BY_A_RUN) == list(LEFT_BY_A_RUN), "the run that was refused deleted something"
    with claimed(used, job, fresh=False):
        pass


@pytest.mark.parametrize("out", ["file", "file/below", "folder-as-lock"])
def test_a_folder_that_cannot_be_written_is_named(job: Job, tmp_path: Path, out: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder-as-lock" / ".lock").mkdir(parents=True)
    with (
        pytest.raises(UsageError, match=f"^--out {tmp_path / out}: .*, expected a folder that can be written$"),
        claimed(tmp_path / out, job, fresh=False),
    ):
        pytest.fail("claimed")


def test_addresses_are_pairs_of_ports_that_nobody_uses() -> None:
    addresses = ports.free_addresses(20)
    assert len({address.port for address in addresses}) == 20
    for address in addresses:
        assert address.host == "127.0.0.1"
        assert address.port % 2 == 0
        assert ports.LOW <= address.port < ports.HIGH
        for port in (address.port, address.port + 1):
            with closing(socket.socket()) as probe:
                probe.bind(("127.0.0.1", port))


def test_a_pair_that_was_given_out_is_not_given_to_another_until_many_more_were(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two runs that begin at once would have the same ports otherwise: their processes listen seconds later."""
    monkeypatch.setattr(ports, "_reserved", deque())
    [address] = ports.free_addresses(1)
    with monkeypatch.context() as narrow:
        narrow.setattr(ports, "LOW", address.port)
        narrow.setattr(ports, "HIGH", address.port + 2)
        with pytest.raises(LostPeerError, match="no 1 pairs of free ports"):
            ports.free_addresses(1)
    monkeypatch.setattr(ports, "RESERVED", 3)
    ports.free_addresses(3)
    monkeypatch.setattr(ports, "LOW", address.port)
    monkeypatch.setattr(ports, "HIGH", address.port + 2)
    assert ports.free_addresses(1) == [address]
    ports._release()


@pytest.mark.parametrize("taken", [0, 1], ids=["TensorFlow's port", "the control port"])
def test_a_pair_of_which_one_port_is_taken_is_not_given_out(monkeypatch: pytest.MonkeyPatch, taken: int) -> None:
    [address] = ports.free_addresses(1)
    monkeypatch.setattr(ports, "LOW", address.port)
    monkeypatch.setattr(ports, "HIGH", address.port + 2)
    monkeypatch.setattr(ports, "_reserve", lambda port: True)
    assert ports.free_addresses(1) == [address]
    with closing(socket.socket()) as user:
        user.bind(("127.0.0.1", address.port + taken))
        user.listen()
        with pytest.raises(
            LostPeerError, match=f"no 1 pairs of free ports between {address.port} and {address.port + 2}"
        ):
            ports.free_addresses(1)


def test_no_address_is_given_out_twice() -> None:
    assert ports.free_addresses(0) == []
