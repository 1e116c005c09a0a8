"""Checkpoints in a store: as those on a disk, although nothing there can be renamed or locked."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from support.checkpoint_samples import PARAMETERS, SLOTS, contents, random_values, sample_layout, save
from support.s3_server import BROKEN, DENIED, S3Server

from psfleet.checkpoint import evaluated, export
from psfleet.checkpoint.location import STORE_FILE, record, recorded_root, root_of
from psfleet.checkpoint.manifest import MANIFEST, abandon, checkpoint_folder, read_manifest, write_manifest
from psfleet.checkpoint.object_store import StoreFolder
from psfleet.checkpoint.part_writing import write_part
from psfleet.checkpoint.store import committed_checkpoints, newest, prune, verify, write_initial
from psfleet.checkpoint.store_client import StoreError
from psfleet.checkpoint.stored_run import delete_stored, next_generation, require_job
from psfleet.checkpoint.tensors import read_shard, read_tensors
from psfleet.errors import BadJobError, NoCheckpointError, UsageError
from psfleet.job.job import Job, parse_job

JOB: dict[str, Any] = {
    "name": "stored",
    "program": "program:build",
    "optimizer": {"name": "sgd", "learning_rate": 0.1},
    "train": {"steps": 10, "batch_size": 2},
}


def job(store: StoreFolder | None, **sections: Any) -> Job:
    return parse_job({**JOB, **sections, "checkpoint": {"store": None if store is None else str(store)}})


@pytest.fixture
def root(bucket: StoreFolder) -> StoreFolder:
    """The checkpoints of a run in a store."""
    found = root_of(Path("unused"), job(bucket / "run"))
    assert isinstance(found, StoreFolder)
    return found


def test_a_checkpoint_reads_back_as_it_was_written(root: StoreFolder) -> None:
    written = save(root, 7, generation=3)
    assert str(written.folder) == f"{root}/00000007-g3"
    assert sorted(root.iterdir(), key=str) == [written.folder]
    found = newest(root)
    assert found == written
    verify(written)


def test_a_part_is_the_file_that_a_disk_would_have(root: StoreFolder, tmp_path: Path) -> None:
    layout = sample_layout(1)
    arguments = (0, layout, contents(layout, 1)[0], 7, 2, "run")
    on_disk, stored = write_part(tmp_path, *arguments), write_part(root / "c", *arguments)
    assert stored == on_disk
    assert (root / "c" / stored.file).read_bytes() == (tmp_path / on_disk.file).read_bytes()


@pytest.mark.parametrize("num_ps", [1, 2, 3])
def test_any_number_of_ps_restores_a_checkpoint(root: StoreFolder, num_ps: int) -> None:
    checkpoint = save(root, 7, layout=sample_layout(2))
    layout = sample_layout(num_ps)
    for shard, expected in enumerate(contents(layout, 1)):
        found = read_shard(checkpoint, layout, shard)
        for name, vector in expected.vectors().items():
            assert found.vectors()[name].tobytes() == vector.tobytes(), name
        assert found.scalars["owner"] == min(shard, 1)


def test_a_ps_reads_a_part_in_few_requests(s3: S3Server, root: StoreFolder) -> None:
    checkpoint = save(root, 7, layout=sample_layout(2))
    s3.requests.clear()
    read_shard(checkpoint, sample_layout(2), 0)
    assert len([path for method, path in s3.requests if method == "GET"]) == 2, s3.requests


def test_the_initial_checkpoint_is_complete_when_its_manifest_is_there(s3: S3Server, root: StoreFolder) -> None:
    layout = sample_layout(2)
    written = write_initial(
        root, layout, random_values(1), run="run", generation=1, optimizer="adam", extra={"versions": {}}
    )
    assert read_tensors(written)["dense/kernel"].tobytes() == random_values(1)["dense/kernel"].tobytes()
    puts = [path.partition("?")[0].rpartition("/")[2] for method, path in s3.requests if method == "PUT"]
    assert puts[-1] == MANIFEST


def test_a_manifest_is_never_replaced(root: StoreFolder) -> None:
    """A chief that was frozen in the request cannot change what its successor has written."""
    layout = sample_layout(1)
    first = save(root, 7, layout=layout)
    part = write_part(first.folder, 0, layout, contents(layout, 1)[0], 7, 1, "run")
    values: dict[str, Any] = {"run": "run", "step": 7, "generation": 1, "optimizer": "adam", "slots": SLOTS}
    write_manifest(first.folder, layout, [part], **values, extra={"repeated": True})
    assert read_manifest(first.folder) == first, "the same parts: the chief before has committed them"
    other = write_part(first.folder, 0, layout, contents(layout, 2)[0], 7, 1, "run")
    with pytest.raises(OSError, match="another run has written it with other parts"):
        write_manifest(first.folder, layout, [other], **values, extra={})


def test_no_generation_is_used_twice(root: StoreFolder, tmp_path: Path) -> None:
    """The manifest of a damaged checkpoint would stand in the way of a new one of its step and generation."""
    save(root, 10, generation=2)
    damaged = save(root, 20, generation=3)
    (damaged.folder / damaged.parts[0].file).unlink()
    assert next_generation(root, 3) == 4
    assert next_generation(tmp_path, 3) == 3


def test_an_older_checkpoint_stands_in_for_one_with_a_broken_part(
    root: StoreFolder, caplog: pytest.LogCaptureFixture
) -> None:
    older, broken = save(root, 10), save(root, 20)
    path = broken.folder / broken.parts[1].file
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))
    with caplog.at_level(logging.WARNING):
        assert newest(root) == older
    assert "SHA-256" in caplog.text


@pytest.mark.parametrize("damage", ["truncated", "missing"])
def test_a_checkpoint_without_a_whole_part_is_invalid(root: StoreFolder, damage: str) -> None:
    checkpoint = save(root, 10)
    path = checkpoint.folder / checkpoint.parts[0].file
    path.unlink() if damage == "missing" else path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(NoCheckpointError, match=r"none of the 1 checkpoints"):
        newest(root)


@pytest.mark.parametrize(
    "header",
    [
        pytest.param(b"{", id="no JSON"),
        pytest.param(b"[]", id="no mapping"),
        pytest.param(b'{"a": {"dtype": "F32"}}', id="no shape"),
        pytest.param(b'{"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, -4]}}', id="negative"),
        pytest.param(b'{"a": {"dtype": "F32", "shape": [9], "data_offsets": [0, 4]}}', id="other size"),
        pytest.param(b'{"__metadata__": 1}', id="metadata"),
    ],
)
def test_a_part_that_is_no_safetensors_file_is_named(root: StoreFolder, header: bytes) -> None:
    checkpoint = save(root, 10, layout=sample_layout(1))
    path = checkpoint.folder / checkpoint.parts[0].file
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(NoCheckpointError, match=checkpoint.parts[0].file):
        read_tensors(checkpoint)


def test_a_store_that_fails_is_not_an_invalid_checkpoint(s3: S3Server, root: StoreFolder) -> None:
    """An older one must not stand in for the newest: the steps since would be trained again."""
    save(root, 10)
    newest_one = save(root, 20)
    s3.fault = lambda method, path: BROKEN if newest_one.folder.name in path else None
    for call in (newest, lambda root: list(committed_checkpoints(root))):
        with pytest.raises(StoreError):
            call(root)
    with pytest.raises(StoreError):
        read_tensors(newest_one)


def test_old_checkpoints_are_deleted_manifest_first(s3: S3Server, root: StoreFolder) -> None:
    saved = [save(root, step) for step in (10, 20, 30, 40)]
    write_part(checkpoint_folder(root, 15, 1), 0, sample_layout(1), contents(sample_layout(1), 1)[0], 15, 1, "run")
    s3.requests.clear()
    removed = prune(root, 1, protected=[saved[1].folder])
    assert {folder.name for folder in removed} == {"00000010-g1", "00000015-g1", "00000030-g1"}
    assert [each.step for each in committed_checkpoints(root)] == [40, 20]
    assert {folder.name for folder in root.iterdir()} == {"00000040-g1", "00000020-g1"}
    deletions = [path for method, path in s3.requests if method in ("DELETE", "POST") and "manifest" not in path]
    manifests = [path for method, path in s3.requests if method == "DELETE" and MANIFEST in path]
    assert s3.requests.index(("DELETE", manifests[0])) < min(
        number for number, (_, path) in enumerate(s3.requests) if path in deletions
    )


def test_the_metrics_of_a_checkpoint_are_beside_it(s3: S3Server, root: StoreFolder) -> None:
    checkpoint = save(root, 10)
    assert evaluated.evaluated([checkpoint]) == []
    evaluated.write(checkpoint, {"loss": 0.5})
    assert [dict(each.metrics) for each in evaluated.evaluated([checkpoint])] == [{"loss": 0.5}]
    s3.fault = lambda method, path: BROKEN
    with pytest.raises(StoreError):
        evaluated.evaluated([checkpoint])


def test_fresh_deletes_what_psfleet_wrote_and_nothing_else(bucket: StoreFolder, root: StoreFolder) -> None:
    save(root, 10)
    (bucket / "run" / "report.json").write_bytes(b"{}")
    (bucket / "run" / "notes.txt").write_bytes(b"mine")
    (root / "notes.txt").write_bytes(b"mine")
    (bucket / "running" / "checkpoints" / "00000010-g1" / MANIFEST).write_bytes(b"another run's")
    delete_stored(job(bucket / "run"))
    assert sorted(each.name for each in (bucket / "run").iterdir()) == ["checkpoints", "notes.txt", "owners"]
    assert [each.name for each in root.iterdir()] == ["notes.txt"]
    assert (bucket / "running" / "checkpoints").is_dir()


def test_fresh_in_a_store_that_refuses_the_credentials_is_a_bad_job(s3: S3Server, bucket: StoreFolder) -> None:
    s3.fault = lambda method, path: DENIED
    with pytest.raises(BadJobError, match="expected a bucket that exists, and credentials"):
        delete_stored(job(bucket / "run"))


def test_the_run_of_another_job_is_not_continued(root: StoreFolder, tmp_path: Path) -> None:
    extra = {"job": {"name": "another"}}
    with pytest.raises(BadJobError, match=r"is of job another, expected another prefix for job stored"):
        require_job(save(root, 10, extra=extra), job(None))
    require_job(save(root, 20, extra={"job": {"name": "stored"}}), job(None))
    require_job(save(tmp_path, 10, extra=extra), job(None))


@pytest.mark.parametrize("named", ["store", "checkpoints", "checkpoint", "run folder"])
def test_weights_are_exported_from_a_store(bucket: StoreFolder, root: StoreFolder, tmp_path: Path, named: str) -> None:
    checkpoint = save(root, 10)
    record(tmp_path, job(bucket / "run"))
    sources = {
        "store": bucket / "run", "checkpoints": root, "checkpoint": checkpoint.folder, "run folder": tmp_path
    }  # fmt: skip
    out = tmp_path / "weights.safetensors"
    export.export(sources[named], out)
    found = safetensors.numpy.load_file(out)
    assert {spec.name: found[spec.name].tobytes() for spec in PARAMETERS} == {
        spec.name: values.tobytes() for spec in PARAMETERS for values in [np.asarray(random_values(1)[spec.name])]
    }


def test_a_run_folder_knows_its_store_until_the_job_has_none(bucket: StoreFolder, tmp_path: Path) -> None:
    record(tmp_path, job(bucket / "run"))
    assert (tmp_path / STORE_FILE).read_text() == f"{bucket}/run\n"
    assert recorded_root(tmp_path) == bucket / "run" / "checkpoints"
    record(tmp_path, job(None))
    assert recorded_root(tmp_path) == tmp_path / "checkpoints"


@pytest.mark.parametrize("content", [b"", b"\n", b"\xff"])
def test_a_lost_name_of_a_store_does_not_stand_for_the_current_folder(tmp_path: Path, content: bytes) -> None:
    """The file is empty after a power failure: it is not flushed to the disk."""
    (tmp_path / STORE_FILE).write_bytes(content)
    assert recorded_root(tmp_path) == tmp_path / "checkpoints"


def test_the_manifest_names_no_credentials(root: StoreFolder) -> None:
    text = (save(root, 10).folder / MANIFEST).read_bytes().decode()
    assert "secret-of-the-tester" not in text
    assert json.loads(text)["step"] == 10


@pytest.mark.usefixtures("s3")
def test_weights_of_a_bucket_that_does_not_exist_are_a_wrong_argument(tmp_path: Path) -> None:
    for best in (False, True):
        with pytest.raises(UsageError, match="bucket never-made does not exist"):
            export.export(StoreFolder("s3://never-made/run"), tmp_path / "w.safetensors", best)


def test_an_abandoned_checkpoint_is_no_checkpoint_and_is_deleted_as_one_without_a_manifest(root: StoreFolder) -> None:
    kept = save(root, 1)
    begun = save(root, 2)
    (begun.folder / MANIFEST).unlink()
    assert isinstance(begun.folder, StoreFolder)
    assert abandon(begun.folder)
    assert abandon(begun.folder), "twice, as by a recovery that is tried again"
    assert not abandon(StoreFolder(str(kept.folder))), "it is committed"
    assert newest(root) == kept
    assert prune(root, keep=1) == [], "it is newer than the newest one"
    after = save(root, 3, generation=2)
    assert set(prune(root, keep=1)) == {kept.folder, begun.folder}
    assert root.iterdir() == [after.folder]
