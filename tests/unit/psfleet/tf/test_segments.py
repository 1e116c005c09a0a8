"""Which models are pushed, updated and pulled in segments, and in how many."""

from __future__ import annotations

from typing import Any

import pytest

from psfleet.job.job import Job, parse_job
from psfleet.layout import EmbeddingSpec, Layout, Losses, TensorSpec
from psfleet.tf import bucket_bytes, keeps_previous, shard_segments

MIB = 1 << 20
SGD = {"name": "sgd", "learning_rate": 0.1}
TABLE = EmbeddingSpec("table", "table", 100, 4, "zeros", 0.0, 0)


def job_of(num_ps: int = 1, workers: int = 2, **sections: Any) -> Job:
    fields = {"name": "sample", "program": "program:build", "optimizer": SGD}
    fields |= {"train": {"steps": 20, "batch_size": 4}, "fleet": {"ps": num_ps, "workers": workers}}
    return parse_job({**fields, **sections})


def num_segments(job: Job, num_bytes: int, losses: Losses = (), tables: tuple[EmbeddingSpec, ...] = ()) -> list[int]:
    """The segments of each ps for a model of so many bytes in two tensors."""
    specs = [TensorSpec("a", (num_bytes // 8,)), TensorSpec("b", (num_bytes // 8,))]
    most = bucket_bytes(job, specs, losses, tables)
    layout = Layout.plan(specs, [], [], job.fleet.ps, most, (), losses, tables)
    found = [shard_segments(job, layout, shard) for shard in range(job.fleet.ps)]
    assert [[segment.index for segment in of_shard] for of_shard in found] == [list(range(len(each))) for each in found]
    spans = [(bucket.start, bucket.stop) for of_shard in found for each in of_shard for bucket in each.buckets]
    assert [start for start, _ in spans] == [0, *(stop for _, stop in spans[:-1])]
    assert spans[-1][1] == layout.parameters.size
    return [len(of_shard) for of_shard in found]


@pytest.mark.parametrize(
    ("num_bytes", "num_ps", "expected"),
    [(15 * MIB, 1, 1), (16 * MIB, 1, 16), (16 * MIB, 2, 16), (24 * MIB, 4, 16), (16 * MIB, 16, 4), (512 * MIB, 2, 16)],
)
def test_a_large_model_has_up_to_16_segments_on_each_ps_which_are_not_small(
    num_bytes: int, num_ps: int, expected: int
) -> None:
    assert num_segments(job_of(num_ps), num_bytes) == [expected] * num_ps


def test_no_bucket_is_larger_than_the_job_allows() -> None:
    assert num_segments(job_of(update={"bucket_bytes": MIB}), 8 * MIB) == [8]
    assert num_segments(job_of(update={"bucket_bytes": MIB}), 64 * MIB) == [64]


@pytest.mark.parametrize(
    "job",
    [
        job_of(update={"mode": "async"}),
        job_of(update={"mode": "ssp", "bound": 1}),
        job_of(update={"mode": "averaging", "local_steps": 2}),
        job_of(optimizer={"name": "lamb", "learning_rate": 0.1}),
    ],
    ids=["async", "ssp", "averaging", "lamb"],
)
def test_other_modes_and_lamb_have_one_segment(job: Job) -> None:
    assert num_segments(job, 32 * MIB) == [1]


def test_tables_and_several_losses_have_one_segment() -> None:
    assert num_segments(job_of(), 32 * MIB, tables=(TABLE,)) == [1]
    train = {"steps": 20, "batch_size": 4, "alternate": ["one", "two"]}
    several = job_of(optimizer=None, optimizers={"one": SGD, "two": SGD}, train=train)
    assert num_segments(several, 32 * MIB, losses=(("one", 1), ("two", 1))) == [1]


def test_parameters_before_the_last_update_are_kept_for_a_worker_that_others_wait_for() -> None:
    assert keeps_previous(job_of(), 2)
    assert not keeps_previous(job_of(), 1)
    assert not keeps_previous(job_of(update={"quorum": 1}), 2)
    assert not keeps_previous(job_of(update={"mode": "async"}), 2)
