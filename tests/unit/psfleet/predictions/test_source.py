"""What workers get of a trained model: paths on this machine, and names of files in containers."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.exported_run import trained

from psfleet.checkpoint.object_store import StoreFolder
from psfleet.job.job import job_from_json
from psfleet.job.prediction_files import is_name_of_share
from psfleet.predictions.source import find


def test_containers_fetch_each_file_of_a_checkpoint_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(trained(tmp_path))
    source = find(".", None, False)
    folder = tmp_path / "checkpoints" / "00000000-g1"
    assert source.request("data:set", 2).checkpoint == str(folder)
    assert not source.request("data:set", 2).files
    request = source.request_of_containers("data:set", 2)
    assert request.checkpoint == "checkpoint"
    names = sorted(f"checkpoint/{path.name}" for path in folder.iterdir())
    assert sorted(request.files) == sorted(source.files()) == names
    assert all(path.is_file() for path in source.files().values())
    assert job_from_json(request.job, "test").program == "versioned_program:keras_program"


def test_containers_read_a_store_themselves(tmp_path: Path, bucket: StoreFolder) -> None:
    (folder,) = (trained(tmp_path) / "checkpoints").iterdir()
    for path in folder.iterdir():
        (bucket / "checkpoints" / folder.name / path.name).write_bytes(path.read_bytes())
    request = find(str(bucket), None, False).request_of_containers("data:set", 2)
    assert request.checkpoint == f"{bucket}/checkpoints/{folder.name}"
    assert not request.files


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("share-1.json", True),
        ("share-1-0.bin", True),
        ("share-1-12.bin", True),
        ("share-0.json", False),
        ("share-11.json", False),
        ("share-1-0.bin\n", False),
        ("share-1-00.bin", False),
        ("../share-1.json", False),
        ("request.json", False),
    ],
)
def test_a_worker_may_write_the_files_of_its_own_share_alone(name: str, expected: bool) -> None:
    assert is_name_of_share(1, name) is expected
