"""The folder of a prediction's shares: when it is kept, and what a driver that is started again uses of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.predicted_share import write_share

from psfleet.errors import LostPeerError, ProgramError, StoppedError, UsageError
from psfleet.job.prediction_files import Request, share_file, values_file
from psfleet.predictions.folders import kept, temporary

REQUEST = Request(job="{}", checkpoint="/run", data="data:set", workers=2)


def interrupted(out: Path, error: Exception) -> tuple[Path, Request]:
    """A driver that ends with an error when worker 0 has completed its share."""
    place = kept(out, REQUEST)
    folder, request = place.__enter__()
    assert Request.read(folder) == request
    write_share(folder, 0, 2, request.attempt)
    assert not place.__exit__(type(error), error, None)
    return folder, request


def test_a_driver_that_is_started_again_has_the_shares(tmp_path: Path) -> None:
    out = tmp_path / "out.npz"
    for error in (LostPeerError("killed"), StoppedError(15), RuntimeError("killed")):
        folder, before = interrupted(out, error)
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / ".share-1-0.bin.x.tmp").touch()
        before.model_copy(update={"complete": (0,)}).write(folder)
        with kept(out, REQUEST) as (again, request):
            assert (again, request.attempt) == (folder, before.attempt)
            assert share_file(folder, 0).exists()
            assert not list(folder.glob(".*.tmp"))
        assert not folder.exists()


@pytest.mark.parametrize("error", [ProgramError("NaN"), UsageError("no predictions")])
def test_nothing_is_kept_after_an_error_that_would_recur(tmp_path: Path, error: Exception) -> None:
    folder, _ = interrupted(tmp_path / "out.npz", error)
    assert not folder.exists()


def other_data(folder: Path) -> Request:
    return REQUEST.model_copy(update={"data": "data:other"})


def short_values(folder: Path) -> Request:
    values_file(folder, 0, 0).write_bytes(b"\0")
    return REQUEST


def empty_record(folder: Path) -> Request:
    share_file(folder, 0).write_bytes(b"")
    return REQUEST


def no_request(folder: Path) -> Request:
    (folder / "request.json").unlink()
    return REQUEST


def empty_request(folder: Path) -> Request:
    (folder / "request.json").write_bytes(b"")
    return REQUEST


@pytest.mark.parametrize("change", [other_data, short_values, empty_record, no_request, empty_request])
def test_shares_of_another_request_or_damaged_ones_are_not_used(
    tmp_path: Path, change: Callable[[Path], Request]
) -> None:
    out = tmp_path / "out.npz"
    folder, before = interrupted(out, LostPeerError("killed"))
    with kept(out, change(folder)) as (_, request):
        assert request.attempt not in ("", before.attempt)
        assert Request.read(folder) == request
        assert not list(folder.glob("share-*"))


def test_a_second_driver_of_one_file_is_refused(tmp_path: Path) -> None:
    with (
        kept(tmp_path / "out.npz", REQUEST),
        pytest.raises(UsageError, match="another psfleet predict uses"),
        kept(tmp_path / "out.npz", REQUEST),
    ):
        pass
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("place", [temporary, kept])
def test_a_disk_that_cannot_be_written_is_named(tmp_path: Path, place: Callable[..., object]) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="Not a directory"), place(tmp_path / "file" / "out.npz", REQUEST):
        pass
