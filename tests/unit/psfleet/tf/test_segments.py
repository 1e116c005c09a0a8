"""Which jobs push, update and pull a shard in several segments."""

from __future__ import annotations

from typing import Any

import pytest

from psfleet.job.job import Job, parse_job
from psfleet.layout import EmbeddingSpec, Layout, Losses, TensorSpec
from psfleet.tf import keeps_previous, shard_segments
from psfleet.tf.segments import MAX_SEGMENTS

MIB = 1 << 20
SMALL = {"bucket_bytes": MIB}
SGD = {"name": "sgd", "learning_rate": 0.1}
TABLE = EmbeddingSpec("table", "table", 100, 4, "zeros", 0.0, 0)


def job_of(num_ps: int = 1, workers: int = 2, **sections: Any) -> Job:
    fields = {"name": "sample", "program": "program:build", "optimizer": SGD}
    fields |= {"train": {"steps": 20, "batch_size": 4}, "fleet": {"ps": num_ps, "workers": workers}}
    return parse_job({**fields, **sections})


def num_segments(job: Job, num_bytes: int, losses: Losses = (), tables: tuple[EmbeddingSpec, ...] = ()) -> list[int]:
    """The segments of each ps for a model of so many bytes in two tensors."""
    specs = [TensorSpec("a", (num_bytes // 8,)), TensorSpec("b", (num_bytes // 8,))]
    layout = Layout.plan(specs, [], [], job.fleet.ps, job.update.bucket_bytes, (), losses, tables)
    found = [shard_segments(job, layout, shard) for shard in range(job.fleet.ps)]
    assert [[segment.index for segment in of_shard] for of_shard in found] == [list(range(len(each))) for each in found]
    spans = [(bucket.start, bucket.stop) for of_shard in found for each in of_shard for bucket in each.buckets]
    assert [start for start, _ in spans] == [0, *(stop for _, stop in spans[:-1])]
    assert spans[-1][1] == layout.parameters.size
    return [len(of_shard) for of_shard in found]


@pytest.mark.parametrize(("num_ps", "expected"), [(1, 8), (2, 4), (8, 1)])
def test_in_sync_mode_each_bucket_is_a_segment(num_ps: int, expected: int) -> None:
    assert num_segments(job_of(num_ps, update=SMALL), 8 * MIB) == [expected] * num_ps


@pytest.mark.parametrize(("num_ps", "expected"), [(1, MAX_SEGMENTS), (3, MAX_SEGMENTS // 3), (200, 1)])
def test_many_small_buckets_are_in_a_few_segments(num_ps: int, expected: int) -> None:
    """Each takes milliseconds of a step, and of the start of a worker."""
    assert num_segments(job_of(num_ps, update={"bucket_bytes": 4096}), 8 * MIB) == [expected] * num_ps


def test_replicas_of_one_graph_share_the_number_of_segments() -> None:
    job = job_of(workers=4, update={"bucket_bytes": 4096, "replication": "in_graph"})
    assert num_segments(job, 8 * MIB) == [MAX_SEGMENTS // 4]


@pytest.mark.parametrize(
    "job",
    [
        job_of(update={**SMALL, "mode": "async"}),
        job_of(update={**SMALL, "mode": "ssp", "bound": 1}),
        job_of(update={**SMALL, "mode": "averaging", "local_steps": 2}),
        job_of(update=SMALL, optimizer={"name": "lamb", "learning_rate": 0.1}),
    ],
    ids=["async", "ssp", "averaging", "lamb"],
)
def test_other_modes_and_lamb_have_one_segment(job: Job) -> None:
    assert num_segments(job, 8 * MIB) == [1]


def test_tables_and_several_losses_have_one_segment() -> None:
    assert num_segments(job_of(update=SMALL), 8 * MIB, tables=(TABLE,)) == [1]
    train = {"steps": 20, "batch_size": 4, "alternate": ["one", "two"]}
    several = job_of(update=SMALL, optimizer=None, optimizers={"one": SGD, "two": SGD}, train=train)
    assert num_segments(several, 8 * MIB, losses=(("one", 1), ("two", 1))) == [1]


def test_parameters_before_the_last_update_are_kept_for_a_worker_that_others_wait_for() -> None:
    assert keeps_previous(job_of(), 2)
    assert not keeps_previous(job_of(), 1)
    assert not keeps_previous(job_of(update={"quorum": 1}), 2)
    assert not keeps_previous(job_of(update={"mode": "async"}), 2)
