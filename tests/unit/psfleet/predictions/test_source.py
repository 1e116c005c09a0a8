"""What workers get of a trained model: paths on this machine, and names of files in containers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.exported_run import BIAS, KERNEL, trained, with_checkpoint

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


def test_workers_in_containers_need_no_access_to_a_store(tmp_path: Path, bucket: StoreFolder) -> None:
    (folder,) = (trained(tmp_path) / "checkpoints").iterdir()
    for path in folder.iterdir():
        (bucket / "checkpoints" / folder.name / path.name).write_bytes(path.read_bytes())
    stored, here = (find(str(each), None, False) for each in (bucket, tmp_path))
    assert stored.request_of_containers("data:set", 2) == here.request_of_containers("data:set", 2)
    assert stored.request("data:set", 2).checkpoint == f"{bucket}/checkpoints/{folder.name}"
    assert all(isinstance(each, StoreFolder) for each in stored.files().values())


def test_other_weights_under_the_same_names_are_another_request(tmp_path: Path) -> None:
    source = find(str(trained(tmp_path)), None, False)
    before = source.request_of_containers("data:set", 2)
    assert source.request_of_containers("data:set", 2) == before
    with_checkpoint(tmp_path, 4, KERNEL + 1, BIAS)
    after = find(str(tmp_path), None, False).request_of_containers("data:set", 2)
    assert after.digest != before.digest
    assert after.model_copy(update={"digest": before.digest}) == before
    for name in ("one", "two"):
        (tmp_path / name).write_text(name)
    trials = [replace(source, checkpoint=None, weights=tmp_path / name) for name in ("one", "two")]
    requests = [each.request_of_containers("data:set", 2) for each in trials]
    assert requests[0].weights == requests[1].weights == "weights.safetensors"
    assert requests[0] != requests[1]


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
