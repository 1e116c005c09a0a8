"""Shares of workers become one file in the order of the examples, or none."""

from __future__ import annotations

import itertools
import os
import resource
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest

from psfleet.errors import ProgramError, PsfleetError, UsageError
from psfleet.job.prediction_files import Output, Share, values_file
from psfleet.predictions import files

LOGITS = np.arange(14, dtype=np.float32).reshape([7, 2])
LABELS = np.array([1, 2, 3, 4, 5, 6, 7], np.int64)
OUTPUTS = [Output(name="logits", dtype="float32", shape=[2]), Output(name="a/label", dtype="int64", shape=[])]
BATCHES = [slice(0, 2), slice(2, 4), slice(4, 6), slice(6, 7)]


def _written(folder: Path, workers: int, outputs: Sequence[Output] = OUTPUTS) -> Path:
    """Shares of so many workers of the seven examples, in batches of two."""
    for index in range(workers):
        own = BATCHES[index::workers]
        for at, values in enumerate((LOGITS, LABELS)):
            values_file(folder, index, at).write_bytes(b"".join(values[rows].tobytes() for rows in own))
        counts = [len(LABELS[rows]) for rows in own]
        Share(outputs=list(outputs) if own else [], counts=counts, num_examples=7, checksum=5).write(folder, index)
    return folder


@pytest.mark.parametrize("workers", [1, 2, 3, 6])
def test_predictions_are_in_the_order_of_the_examples(tmp_path: Path, workers: int) -> None:
    shares = files.Shares(_written(tmp_path, workers), workers, "data:set")
    files.write(shares, Path("out.npz"), tmp_path / "temporary")
    with np.load(tmp_path / "temporary", allow_pickle=False) as found:
        assert sorted(found) == ["a/label", "logits"]
        np.testing.assert_array_equal(found["logits"], LOGITS)
        np.testing.assert_array_equal(found["a/label"], LABELS)


def test_parquet_has_a_row_for_each_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "GROUP_BYTES", 60)
    files.write(files.Shares(_written(tmp_path, 3), 3, "data:set"), Path("out.parquet"), tmp_path / "temporary")
    assert pyarrow.parquet.ParquetFile(tmp_path / "temporary").num_row_groups == 2
    table = pyarrow.parquet.read_table(tmp_path / "temporary")
    assert table.column("logits").to_pylist() == LOGITS.tolist()
    assert table.column("a/label").to_pylist() == LABELS.tolist()


def _one_each(folder: Path, workers: int) -> files.Shares:
    """The shares of workers that have predicted one batch of one example each: the square of its number."""
    output = Output(name="square", dtype="int64", shape=[])
    for index in range(workers):
        values_file(folder, index, 0).write_bytes(np.int64(index**2).tobytes())
        Share(outputs=[output], counts=[1], num_examples=workers, checksum=5).write(folder, index)
    return files.Shares(folder, workers, "data:set")


@pytest.mark.parametrize("name", ["out.npz", "out.parquet"])
def test_shares_may_have_more_files_than_a_process_may_have_open(tmp_path: Path, name: str) -> None:
    shares = _one_each(tmp_path, 60)
    limits, are_open = resource.getrlimit(resource.RLIMIT_NOFILE), [*map(int, os.listdir("/proc/self/fd"))]
    # The limit is about the numbers of files, of which those between may be free.
    limit = next(each for each in itertools.count() if each - sum(number < each for number in are_open) == 30)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limits[1]))
    try:
        files.write(shares, Path(name), tmp_path / name)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    if name.endswith(files.NPZ):
        found = np.load(tmp_path / name)["square"].tolist()
    else:
        found = pyarrow.parquet.read_table(tmp_path / name).column("square").to_pylist()
    assert found == [index**2 for index in range(60)]


def test_parquet_looks_at_the_size_of_each_batch_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []

    class Watched(np.ndarray):
        @property
        def nbytes(self) -> int:
            looks.append(len(self))
            return super().nbytes

    blocks = files.Shares.blocks
    monkeypatch.setattr(
        files.Shares, "blocks", lambda shares, output: (each.view(Watched) for each in blocks(shares, output))
    )
    files.write(_one_each(tmp_path, 60), Path("out.parquet"), tmp_path / "temporary")
    assert looks.count(1) == 60


def test_workers_that_read_different_data_are_found(tmp_path: Path) -> None:
    _written(tmp_path, 2)
    Share.read(tmp_path, 1).model_copy(update={"checksum": 6}).write(tmp_path, 1)
    with pytest.raises(ProgramError, match="different data"):
        files.Shares(tmp_path, 2, "data:set")


def test_workers_that_predict_different_shapes_are_found(tmp_path: Path) -> None:
    _written(tmp_path, 2)
    other = [OUTPUTS[0].model_copy(update={"shape": [3]}), OUTPUTS[1]]
    Share.read(tmp_path, 1).model_copy(update={"outputs": other}).write(tmp_path, 1)
    with pytest.raises(ProgramError, match=r"logits float32 \[3\].*, of others logits float32 \[2\]"):
        files.Shares(tmp_path, 2, "data:set")


def test_a_missing_batch_or_value_is_found(tmp_path: Path) -> None:
    share = Share.read(_written(tmp_path, 2), 1)
    share.model_copy(update={"counts": share.counts[:-1]}).write(tmp_path, 1)
    with pytest.raises(PsfleetError, match="predictions of 6 examples, expected 7"):
        files.Shares(tmp_path, 2, "data:set")
    share.write(tmp_path, 1)
    values_file(tmp_path, 1, 0).write_bytes(b"\0" * 8)
    with pytest.raises(PsfleetError, match="ends after 8 bytes, expected 8 more"):
        files.write(files.Shares(tmp_path, 2, "data:set"), Path("out.npz"), tmp_path / "temporary")


@pytest.mark.parametrize(
    ("name", "expected"), [("out.csv", "ends in .npz or .parquet"), ("no/out.npz", "a folder that")]
)
def test_a_file_that_cannot_be_written_is_refused(tmp_path: Path, name: str, expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        files.require_format(tmp_path / name)


def test_parquet_without_its_package_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"psfleet\[parquet\]"):
        files.require_format(tmp_path / "out.parquet")


def test_an_output_without_elements_is_refused_for_parquet(tmp_path: Path) -> None:
    output = Output(name="codes", dtype="float32", shape=[2, 0])
    values_file(tmp_path, 0, 0).touch()
    Share(outputs=[output], counts=[7], num_examples=7, checksum=5).write(tmp_path, 0)
    shares = files.Shares(tmp_path, 1, "data:set")
    with pytest.raises(UsageError, match=r"output codes has shape \[2, 0\], which Parquet has not, expected .npz"):
        files.write(shares, Path("out.parquet"), tmp_path / "temporary")
    files.write(shares, Path("out.npz"), tmp_path / "temporary")
    with np.load(tmp_path / "temporary") as found:
        assert found["codes"].shape == (7, 2, 0)
