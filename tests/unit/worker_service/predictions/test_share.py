"""A worker's share: the batches that are its own, and the data sets that are refused."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from support.program_samples import sample_job
from support.programs import predicted_data

from psfleet.errors import ProgramError
from psfleet.job.job import Job
from psfleet.job.prediction_files import Request, Share, values_file
from psfleet.service.process import Stop
from worker_service.driver_link import FolderLink
from worker_service.predictions.service import data_set
from worker_service.predictions.share import write_share
from worker_service.trial.signs_of_life import SignsOfLife


class _Sum:
    """Sums the features of each example; an option makes it return one row too few, or another shape."""

    def __init__(self, rows: slice = slice(None), widths: Sequence[int] = (1, 1, 1), dtype: type = np.float32) -> None:
        self._rows = rows
        self._dtype = dtype
        self._widths = iter(widths)

    def predict(self, features: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        sums = np.sum(features[0], 1)[self._rows]
        return {"sum": np.repeat(sums[:, None], next(self._widths), 1).astype(self._dtype)}


def _share(folder: Path, data: tf.data.Dataset, index: int, stop: Stop, predictor: _Sum | None = None) -> Share:
    request = Request(job="{}", data="data:set", workers=2)
    life = SignsOfLife.in_file(folder / "alive")
    write_share(predictor or _Sum(), data.batch(3), _job(), request, FolderLink(folder, index), index, life, stop)
    return Share.read(folder, index)


def _job() -> Job:
    return sample_job().model_copy(update={"program": "predicted_data:labelled"})


def test_a_worker_predicts_every_second_batch_from_its_own_on(tmp_path: Path, stop: Stop) -> None:
    data = predicted_data.labelled()
    shares = [_share(tmp_path, data, index, stop) for index in range(2)]
    assert [share.counts for share in shares] == [[3, 3], [3, 1]]
    assert {share.num_examples for share in shares} == {predicted_data.NUM_EXAMPLES}
    assert len({share.checksum for share in shares}) == 1
    found = np.frombuffer(values_file(tmp_path, 1, 0).read_bytes(), np.float32)
    sums = predicted_data.features().sum(1)
    np.testing.assert_array_equal(found, sums[[3, 4, 5, 9]])
    other = _share(tmp_path, tf.data.Dataset.from_tensor_slices(predicted_data.features()[::-1]), 0, stop)
    assert other.checksum != shares[0].checksum, "another order"


def test_predictions_need_a_row_for_each_example_of_one_shape(tmp_path: Path, stop: Stop) -> None:
    data = predicted_data.labelled()
    with pytest.raises(ProgramError, match=r"sum has shape \[2, 1\], expected \[3, \.\.\.\]"):
        _share(tmp_path, data, 0, stop, _Sum(slice(1, None)))
    with pytest.raises(ProgramError, match=r"sum float32 \[2\], and of an earlier sum float32 \[1\]"):
        _share(tmp_path, data, 0, stop, _Sum(widths=[1, 2]))
    assert not list(tmp_path.glob("*.json"))


def test_predicted_strings_are_refused(tmp_path: Path, stop: Stop) -> None:
    with pytest.raises(ProgramError, match="sum is a tensor of strings, expected numbers"):
        _share(tmp_path, predicted_data.labelled(), 0, stop, _Sum(dtype=object))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("shuffled", r"the data set is random, expected the same order in each worker: no shuffle\(\)"),
        ("shuffled_once", "the data set is random"),
        ("generated", "the data set is random"),
        ("endless", r"the data set is endless, expected no repeat\(\)"),
        ("no_data", r"no_data\(\) returned int, expected tf\.data\.Dataset"),
        ("nothing", "has nothing of that name at 'nothing'"),
    ],
)
def test_a_data_set_that_several_workers_cannot_predict_is_refused(tmp_path: Path, name: str, message: str) -> None:
    shutil.copy(predicted_data.__file__, tmp_path / "refused_data.py")
    # As a worker has it, whatever other tests have set.
    tf.random.set_seed(None)
    with pytest.raises(ProgramError, match=message):
        data_set(sample_job().model_copy(update={"program": f"refused_data:{name}"}), tmp_path)


def test_a_data_set_that_shuffles_once_with_a_seed_has_one_order(tmp_path: Path) -> None:
    shutil.copy(predicted_data.__file__, tmp_path / "ordered_data.py")
    job = sample_job().model_copy(update={"program": "ordered_data:shuffled_by_seed"})
    first, second = ([int(x[0]) for x, _ in data_set(job, tmp_path).as_numpy_iterator()] for _ in range(2))
    assert first == second != sorted(first)


def test_an_empty_data_set_is_refused(tmp_path: Path, stop: Stop) -> None:
    with pytest.raises(ProgramError, match="the data set is empty, expected examples"):
        _share(tmp_path, predicted_data.empty(), 0, stop)
