"""A worker's link to its driver: a folder of this machine, or the control plane of a driver in a container."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.clock import Clock
from support.driver_control import CALL_SECS, RUN, ServedDriver, served_driver

from psfleet.control.worker_registry import Failure
from psfleet.errors import (
    BadJobError,
    LostPeerError,
    ProgramError,
    PsfleetError,
    ReplacedError,
    StoppedError,
    StorageError,
)
from psfleet.job.sections import Deadlines
from psfleet.service import settings
from psfleet.service.settings import Settings
from worker_service.driver_link import ContainerLink, DriverLink, FolderLink, linked

DEADLINES = Deadlines(start_secs=20)


def own_settings(driver: ServedDriver, disk: Path) -> Settings:
    """Of worker 0 in a container."""
    disk.mkdir(exist_ok=True)
    names = {settings.DRIVER: driver.address.data, settings.RUN: RUN, settings.INDEX: "0", settings.OUT: str(disk)}
    return settings.read(names)


class EndedError(Exception):
    """This process has ended with an exit code."""


def end(code: int) -> None:
    raise EndedError(code)


def failure_of(driver: ServedDriver) -> Failure | None:
    joined = driver.registry.joined(0)
    assert joined is not None
    return driver.registry.failure(joined.process)


def test_a_process_of_this_machine_shares_the_folder_of_its_driver(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    link = FolderLink(tmp_path, 3)
    assert link.beat() is None
    assert (tmp_path / "logs" / "worker-3.alive").exists()
    assert link.fetch("request.json") == tmp_path / "request.json"
    link.deliver(tmp_path / "share")
    with link.storage() as socket:
        assert socket == ""


def test_a_container_fetches_and_delivers_files_of_its_own_folder(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "0-model").mkdir()
    (tmp_path / "files" / "0-model" / "part").write_text("weights")
    with served_driver(tmp_path / "files") as driver, linked(own_settings(driver, tmp_path / "disk"), end) as link:
        assert link.folder.parent == tmp_path / "disk"
        found = link.fetch("0-model/part")
        assert (found, found.read_text()) == (link.folder / "0-model" / "part", "weights")
        share = link.folder / "0-share"
        share.write_text("predictions")
        link.deliver(share)
        assert not share.exists()
        assert (tmp_path / "files" / "0-share").read_text() == "predictions"
        assert link.beat() is None
    assert not list((tmp_path / "disk").iterdir())


@pytest.mark.parametrize("name", ["../0-file", "0/../../file", "/etc/hosts"])
def test_a_name_outside_its_folder_is_refused(tmp_path: Path, name: str) -> None:
    with (
        served_driver(tmp_path) as driver,
        linked(own_settings(driver, tmp_path / "disk"), end) as link,
        pytest.raises(BadJobError, match="expected one in its folder"),
    ):
        link.fetch(name)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ProgramError("no data", "line 7"), Failure(70, "no data", "line 7")),
        (ValueError("x"), Failure(1, "a bug in psfleet: ValueError: x", "")),
        (StoppedError(15), None),
        (ReplacedError("another one"), None),
    ],
)
def test_the_driver_learns_why_a_worker_fails(tmp_path: Path, error: Exception, expected: Failure | None) -> None:
    with served_driver(tmp_path) as driver:
        with pytest.raises(type(error)), linked(own_settings(driver, tmp_path / "disk"), end):
            raise error
        assert failure_of(driver) == expected
    assert not list((tmp_path / "disk").iterdir())


def test_what_a_killed_process_has_left_is_removed_by_the_next_one(tmp_path: Path) -> None:
    left, of_another = (tmp_path / "disk" / f"psfleet-worker-{index}-x" for index in (0, 10))
    for folder in (left, of_another):
        folder.mkdir(parents=True)
        (folder / "weights").touch()
    with served_driver(tmp_path) as driver, linked(own_settings(driver, tmp_path / "disk"), end) as link:
        assert link.folder.is_dir()
        assert not left.exists()
    assert list((tmp_path / "disk").iterdir()) == [of_another]


def container_link(driver: ServedDriver, folder: Path, clock: Clock | None = None) -> ContainerLink:
    folder.mkdir()
    client = driver.client()
    client.join()
    return ContainerLink(client, folder, DEADLINES, clock or Clock())


@pytest.mark.parametrize("code", [0, 70])
def test_a_worker_ends_with_the_code_that_it_hears(tmp_path: Path, code: int) -> None:
    (tmp_path / "0-file").touch()
    with served_driver(tmp_path) as driver:
        link = container_link(driver, tmp_path / "own")
        assert link.beat() is None
        driver.servicer.exit_code = code
        assert link.beat() == code
        assert link.folder.exists() == (code != 0), "the main thread may still use it"
        if code == 0:
            with pytest.raises(StorageError):
                link.fetch("0-file")
            assert not link.folder.exists()


@pytest.mark.parametrize("code", [0, 70])
def test_a_worker_that_joins_a_driver_whose_work_is_done_ends_at_once(tmp_path: Path, code: int) -> None:
    with served_driver(tmp_path) as driver:
        driver.servicer.exit_code = code
        with pytest.raises(EndedError, match=f"^{code}$"), linked(own_settings(driver, tmp_path / "disk"), end):
            pytest.fail("it has begun")
    assert not list((tmp_path / "disk").iterdir())


def test_a_worker_waits_for_a_driver_that_is_started_again(tmp_path: Path) -> None:
    clock = Clock()
    with served_driver(tmp_path) as driver:
        link = container_link(driver, tmp_path / "own", clock)
    clock.now = 19
    with pytest.raises(OSError, match="the driver at"):
        link.beat()
    clock.now = 21
    assert link.beat() == LostPeerError.exit_code
    link.fail(PsfleetError("nobody hears it"))


def test_a_worker_that_was_replaced_or_is_of_another_run_ends(tmp_path: Path) -> None:
    with served_driver(tmp_path) as driver:
        link: DriverLink = container_link(driver, tmp_path / "own")
        driver.client().join()
        assert link.beat() == ReplacedError.exit_code
        other = ContainerLink(driver.client(run="other"), tmp_path, Deadlines(start_secs=CALL_SECS))
        assert other.beat() == BadJobError.exit_code
