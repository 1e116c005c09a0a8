"""Which worker has which batch at which step: with spares, after a scale-up, and with shards of different lengths."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support.program_samples import sample_job
from support.rows import first_rows

from psfleet.job.job import Job
from psfleet.job.program import GraphProgram
from worker_service.batch_reader import Batch, Reading
from worker_service.input_pipeline import read
from worker_service.training_data import TrainingData

BATCH_SIZE = 4
NUM_SHARDS = 4
"""3 workers and 1 spare."""
QUORUM = 3
LENGTHS = {"equal": [5, 5, 5, 5], "different": [3, 7, 4, 6]}
"""Batches of each shard: 20 in all."""
ROUND = 20
EPOCHS = 8
Train = Callable[[int, int], tf.data.Dataset]


def known(lengths: list[int]) -> Train:
    """The examples of a shard are numbers that no other shard has; each data set is made once."""
    return functools.cache(
        lambda shard, shards: tf.data.Dataset.range(1000 * shard, 1000 * shard + BATCH_SIZE * lengths[shard])
    )


@tf.autograph.experimental.do_not_convert  # takes longer than a test that reads the data
def always(example: tf.Tensor) -> bool:
    return True


def unknown(lengths: list[int]) -> Train:
    """The same examples, of which TensorFlow does not know how many there are."""
    return functools.cache(lambda shard, shards: known(lengths)(shard, shards).filter(always))


def data(train: Train, index: int, *, rotates: bool = True, shuffle: int = 0) -> TrainingData:
    program = GraphProgram(loss=lambda batch: batch, train=train)
    return TrainingData(program, sample_job(shuffle=shuffle), index, NUM_SHARDS, rotates)


def first(count: int, worker: TrainingData, start: int = 0) -> list[tuple[int, ...]]:
    return [tuple(batch.tolist()) for (batch,) in itertools.islice(worker.batches(start), count)]


def used(batches: list[list[tuple[int, ...]]], secs: list[int], steps: int) -> Counter[int]:
    """How often each example is used if worker i needs `secs[i]` for a step, the first gradients of each step count,
    and a worker that is late continues with the newest step."""
    counts: Counter[int] = Counter()
    now = 0
    is_free = [0] * len(secs)
    trains: dict[int, int] = {}
    for step in range(steps):
        for worker in range(len(secs)):
            if is_free[worker] <= now:
                trains[worker], is_free[worker] = step, now + secs[worker]
        arrivals = sorted((is_free[worker], worker) for worker, at in trains.items() if at == step)
        for _, worker in arrivals[:QUORUM]:
            counts.update(batches[worker][step])
        now = arrivals[QUORUM - 1][0]
    return counts


@pytest.mark.extended
@pytest.mark.parametrize(
    ("lengths", "make", "shuffle"),
    [(LENGTHS["equal"], known, 0), (LENGTHS["different"], known, 8), (LENGTHS["different"], unknown, 0)],
)
def test_the_data_of_a_worker_that_is_always_slow_are_used_as_well(
    lengths: list[int], make: Callable[[list[int]], Train], shuffle: int
) -> None:
    steps, train = EPOCHS * ROUND // NUM_SHARDS, make(lengths)
    batches = [first(steps, data(train, index, shuffle=shuffle)) for index in range(NUM_SHARDS)]
    for slow in range(NUM_SHARDS):
        counts = used(batches, [5 if worker == slow else 1 for worker in range(NUM_SHARDS)], steps)
        assert len(counts) == BATCH_SIZE * ROUND, "every example is used"
        assert max(counts.values()) <= 2 * min(counts.values()), f"worker {slow} is slow: {counts}"


@pytest.mark.parametrize(
    ("lengths", "make", "rotates"),
    first_rows(
        [(LENGTHS["different"], unknown, True), (LENGTHS["equal"], known, True), (LENGTHS["different"], known, False)]
    ),
)
def test_no_two_workers_have_the_same_batch_of_a_step(
    lengths: list[int], make: Callable[[list[int]], Train], rotates: bool
) -> None:
    """Two fleets' worth of workers were added to the running fleet: each shard has at least three batches."""
    train = make(lengths)
    workers = [first(ROUND + 3, data(train, index, rotates=rotates)) for index in range(3 * NUM_SHARDS)]
    for step, batches in enumerate(zip(*workers, strict=True)):
        assert len(set(batches)) == len(workers), f"step {step}: {Counter(batches).most_common(2)}"


@pytest.mark.parametrize(("make", "index"), first_rows([(unknown, 6), (known, 6), (unknown, 1), (known, 1)]))
def test_a_worker_that_joins_again_finds_the_batch_of_a_step(make: Callable[[list[int]], Train], index: int) -> None:
    train = make(LENGTHS["different"])
    stayed = data(train, index, shuffle=8)
    unbroken = first(2 * ROUND + 8, stayed)
    for start in (1, 10, ROUND, 2 * ROUND + 5):
        assert first(3, data(train, index, shuffle=8), start) == unbroken[start : start + 3], f"from {start} on"
        assert first(3, stayed, start) == unbroken[start : start + 3], f"again from {start} on"


def test_without_spares_a_worker_stays_with_its_shard() -> None:
    lengths = LENGTHS["different"]
    for index in range(NUM_SHARDS):
        own = np.arange(1000 * index, 1000 * index + BATCH_SIZE * lengths[index]).reshape(-1, BATCH_SIZE).tolist()
        expected = [tuple(batch) for batch in itertools.islice(itertools.cycle(own), 30)]
        assert first(30, data(known(lengths), index, rotates=False)) == expected


@pytest.mark.parametrize(
    ("fleet", "update", "rotates"),
    [
        ({"workers": 4}, {}, False),
        ({"workers": 3, "spares": 1}, {}, True),
        ({"workers": 4}, {"quorum": 3}, True),
        ({"workers": 3, "spares": 1}, {"quorum": 4}, False),
        ({"workers": 4}, {"mode": "async"}, False),
    ],
)
def test_workers_go_on_to_the_next_shard_where_a_step_can_do_without_one(
    fleet: dict[str, int], update: dict[str, object], rotates: bool
) -> None:
    job = sample_job().model_copy()
    job = type(job).model_validate({**job.model_dump(mode="json"), "fleet": fleet, "update": update})
    program = GraphProgram(loss=lambda batch: batch, train=known(LENGTHS["equal"]))
    shards = {batch[0] // 1000 for batch in first(10, TrainingData.of_worker(program, job, 0))}
    assert shards == ({0, 1} if rotates else {0})


def test_a_data_set_is_made_once_and_when_its_shard_is_due() -> None:
    calls: list[int] = []

    def train(shard: int, shards: int) -> tf.data.Dataset:
        calls.append(shard)
        return known(LENGTHS["equal"])(shard, shards)

    worker = data(train, 1)
    first(5, worker)
    assert calls == [1]
    first(2 * ROUND, worker)
    first(1, worker, 1000)
    assert calls == [1, 2, 3, 0]


def test_all_epochs_after_the_first_round_are_one_pipeline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another pipeline costs more CPU time than a step of a small model."""
    opened: list[str] = []

    def counted(dataset: tf.data.Dataset, job: Job, what: str) -> Iterator[Batch]:
        opened.append(what)
        return read(dataset, job, what)

    monkeypatch.setattr("worker_service.training_data.read", counted)
    first(3 * ROUND, data(known(LENGTHS["different"]), 1))
    assert opened == [f"reading the training data of shard {shard}" for shard in (1, 2, 3)] + [
        "reading the training data"
    ]


def test_far_ahead_no_batch_is_read_where_the_lengths_are_known() -> None:
    far = first(1, data(known(LENGTHS["different"]), 2), 10**12 * ROUND + 11)
    assert far == first(1, data(known(LENGTHS["different"]), 2), 11)


@pytest.mark.parametrize(("index", "ahead"), [(1, 0), (5, 1)])
def test_what_a_new_start_would_skip_is_known_without_a_call_of_train(index: int, ahead: int) -> None:
    """Worker 1 reads shards of 7, 4, 6 and 3 batches."""
    calls: list[int] = []

    def train(shard: int, shards: int) -> tf.data.Dataset:
        calls.append(shard)
        return known(LENGTHS["different"])(shard, shards)

    worker = data(train, index)
    assert worker.num_skipped(0) is None
    first(1, worker)
    assert worker.num_skipped(6 - ahead) == 6
    assert worker.num_skipped(7 - ahead) is None, "that shard was not read"
    first(ROUND, worker)
    calls.clear()
    assert [worker.num_skipped(at - ahead) for at in (6, 7, 10, 11, 19, 20, 3 * ROUND + 12)] == [6, 0, 3, 0, 2, 0, 1]
    assert not calls


def test_what_would_be_skipped_is_known_while_the_reader_opens_another_shard() -> None:
    worker, opened = data(known([1] * 4), 0), itertools.count(NUM_SHARDS)
    open_another = property(lambda self: bool(worker._shards.update({next(opened): self})))
    shard: Any = type("Shard", (SimpleNamespace,), {"varies": open_another})(num_batches=lambda epoch: 1)
    worker._shards.update(dict.fromkeys(range(NUM_SHARDS), shard))
    assert worker.num_skipped(500) == 0


def test_data_without_an_end_are_skipped_from_their_start() -> None:
    for train in (unknown([99] * NUM_SHARDS), lambda shard, shards: tf.data.Dataset.range(9).repeat()):
        worker = data(train, 1)
        first(3, worker)
        assert worker.num_skipped(70) == 70


def test_the_order_of_an_epoch_does_not_depend_on_the_seed_that_tracing_a_step_has_set() -> None:
    worker = data(known(LENGTHS["equal"]), 1, rotates=False, shuffle=8)
    before = first(12, worker)
    tf.random.set_seed(99)
    assert first(12, worker) == before


@pytest.mark.parametrize(
    ("is_endless", "rotates", "says"), [(True, True, 1), (True, False, 0), (False, True, 0), (False, False, 0)]
)
def test_data_without_an_end_are_reported_where_workers_would_go_on_to_the_next_shard(
    caplog: pytest.LogCaptureFixture, is_endless: bool, rotates: bool, says: int
) -> None:
    def train(shard: int, shards: int) -> tf.data.Dataset:
        examples = known(LENGTHS["equal"])(shard, shards)
        return examples.repeat() if is_endless else examples

    first(8, data(train, 2, rotates=rotates))
    assert [record.getMessage()[:36] for record in caplog.records] == ["the data set of shard 2 repeats for "] * says


@pytest.mark.parametrize(("spares", "index", "says"), [(0, 3, 0), (0, 4, 1), (1, 5, 0)])
def test_a_worker_that_was_added_without_spares_says_that_shards_are_fixed(
    caplog: pytest.LogCaptureFixture, spares: int, index: int, says: int
) -> None:
    program = GraphProgram(loss=lambda batch: batch, train=known(LENGTHS["equal"]))
    job = sample_job()
    fleet = job.fleet.model_copy(update={"workers": 4, "spares": spares})
    TrainingData.of_worker(program, job.model_copy(update={"fleet": fleet}), index)
    assert len(caplog.records) == says
    assert all(
        f"worker {index} was added to a fleet without spares" in record.getMessage() for record in caplog.records
    )


def test_a_closed_reader_skips_no_further_batch() -> None:
    reading, seen = Reading(), []

    def example(number: tf.Tensor) -> tf.Tensor:
        def see(value: np.int64) -> np.int64:
            seen.append(int(value))
            reading.is_closed = len(seen) >= 20 * BATCH_SIZE
            return value

        return tf.numpy_function(see, [number], tf.int64, stateful=True)

    def train(shard: int, shards: int) -> tf.data.Dataset:
        return tf.data.Dataset.range(1000 * BATCH_SIZE).repeat().map(example)

    assert not list(data(train, 0).batches(900, reading))
    assert len(seen) < 100 * BATCH_SIZE


@pytest.mark.parametrize("rotates", [True, False])
def test_a_reader_knows_when_the_next_shard_is_opened(rotates: bool) -> None:
    """By the calls of `train`, which may take long. Its first one is a part of the reader's first batch anyway."""
    reading, opened = Reading(), []

    def train(shard: int, shards: int) -> tf.data.Dataset:
        opened.append(reading.opens_shard)
        return known([2] * NUM_SHARDS)(shard, shards)

    for _ in itertools.islice(data(train, 0, rotates=rotates).batches(0, reading), 5):
        assert not reading.opens_shard
    assert opened == ([False, True, True] if rotates else [False])
