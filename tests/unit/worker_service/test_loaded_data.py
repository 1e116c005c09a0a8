"""`input: {from: loaders}`: a loader gives the batches that the worker would read itself."""

from __future__ import annotations

import itertools
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support.loaders import RUN, reached, running
from support.program_samples import sample_job
from support.rows import first_rows

from psfleet.addresses import Address
from psfleet.control import control_pb2 as pb
from psfleet.control.fleet_client import FleetClient
from psfleet.control.server import WATCHED_SECS
from psfleet.errors import BadJobError, DataStallError, ProgramError
from psfleet.job.job import Job
from psfleet.job.program import GraphProgram
from psfleet.polling import wait_until
from psfleet.processes.ports import free_addresses
from psfleet.service import settings
from worker_service.batch_reader import Reading
from worker_service.loaded_data import LoadedData
from worker_service.loader.service import serve
from worker_service.loader_stream import LoaderLostError
from worker_service.loader_watch import Loader, LoaderWatch
from worker_service.training_data import TrainingData

EPOCHS = 3
PER_WORKER = 24


@pytest.fixture(scope="module")
def loaders() -> Iterator[list[Address]]:
    addresses = free_addresses(2)
    with running(addresses[0]), running(addresses[1]):
        yield addresses


def numbers(shard: int, shards: int) -> tf.data.Dataset:
    return tf.data.Dataset.range(PER_WORKER * shards).shard(shards, shard)


def reshuffled(shard: int, shards: int) -> tf.data.Dataset:
    return numbers(shard, shards).shuffle(8)


def of_unknown_length(shard: int, shards: int) -> tf.data.Dataset:
    return numbers(shard, shards).filter(lambda number: number % 5 > 0)


def data(
    train: Callable[[int, int], tf.data.Dataset], loaders: list[Address], worker: int = 0, workers: int = 1, **more: Any
) -> TrainingData:
    program = GraphProgram(loss=lambda batch: batch, train=train)
    rotates = more.pop("rotates", False)
    return TrainingData(program, job(**more), worker, workers, rotates, reached(loaders))


def job(**more: Any) -> Job:
    found = sample_job(shuffle=5)
    return found.model_copy(update={"deadlines": found.deadlines.model_copy(update=more)})


def first(count: int, data: TrainingData, start: int = 0) -> list[list[int]]:
    return [batch.tolist() for (batch,) in itertools.islice(data.batches(start), count)]


@pytest.mark.parametrize(
    ("train", "rotates"),
    first_rows([(numbers, False), (numbers, True), (reshuffled, False), (of_unknown_length, True)], 2),
)
def test_batches_and_their_order_are_those_of_a_worker_that_reads(
    loaders: list[Address], train: Any, rotates: bool
) -> None:
    count = 2 * PER_WORKER // 4
    own = first(count, data(train, [], 1, 2, rotates=rotates))
    loaded = data(train, loaders, 1, 2, rotates=rotates)
    assert first(count, loaded) == own
    assert first(3, loaded, start=9) == own[9:12], "a new reader of the process"
    assert first(3, data(train, loaders, 1, 2, rotates=rotates), start=9) == own[9:12], "a restarted process"


def test_a_restarted_process_has_its_loader_read_data_of_unknown_length_once_before_a_later_epoch(
    loaders: list[Address], caplog: pytest.LogCaptureFixture
) -> None:
    """An epoch has 4 batches."""
    start = 40 * 4 + 1
    with caplog.at_level(logging.INFO, "psfleet.worker"):
        found = first(1, data(of_unknown_length, loaders), start)
    assert caplog.text.count("reads the data of this worker") == 2
    assert found == first(1, data(of_unknown_length, []), start)


@pytest.mark.parametrize("workers", [1, 3])
def test_each_example_comes_once_in_each_epoch(loaders: list[Address], workers: int) -> None:
    readers = [data(numbers, loaders, worker, workers) for worker in range(workers)]
    counts = Counter(np.ravel([first(EPOCHS * PER_WORKER // 4, reader) for reader in readers]).tolist())
    assert counts == dict.fromkeys(range(PER_WORKER * workers), EPOCHS)


def from_generator(shard: int, shards: int) -> tf.data.Dataset:
    signature = tf.TensorSpec([], tf.int64)
    return tf.data.Dataset.from_generator(lambda: iter(range(9)), output_signature=signature)


def by_python(shard: int, shards: int) -> tf.data.Dataset:
    return (
        numbers(shard, shards).map(lambda number: tf.py_function(lambda given: given, [number], tf.int64)).prefetch(1)
    )


@pytest.mark.parametrize("train", [from_generator, by_python])
def test_data_that_call_python_are_refused_before_a_loader_reads_them(loaders: list[Address], train: Any) -> None:
    with pytest.raises(ProgramError, match=r"calls Python .*expected TensorFlow's operations, or input.from: worker$"):
        first(1, data(train, loaders))


def test_an_error_of_the_data_set_is_the_program_s(loaders: list[Address]) -> None:
    def missing(shard: int, shards: int) -> tf.data.Dataset:
        return tf.data.TextLineDataset("/missing/examples.txt").map(tf.strings.length)

    with pytest.raises(ProgramError, match=r"shard 0 raised NotFoundError: .*/missing/examples.txt"):
        first(1, data(missing, loaders))


def test_the_file_of_a_broken_record_is_named(loaders: list[Address], tmp_path: Path) -> None:
    path = tmp_path / "part.tfrecord"
    with tf.io.TFRecordWriter(str(path)) as writer:
        writer.write(b"x" * 20)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ProgramError, match=rf"truncated record at 0.* of {path}$"):
        first(1, data(lambda shard, shards: tf.data.TFRecordDataset(str(path)).map(tf.strings.length), loaders))


def test_each_worker_reads_from_a_loader_of_its_own(loaders: list[Address], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "psfleet.worker"):
        for worker in range(3):
            first(1, data(numbers, loaders, worker, 3))
    texts = [message for message in caplog.messages if "reads the data of this worker" in message]
    assert texts == [f"loader {index} at {loaders[index].data} reads the data of this worker" for index in (0, 1, 0)]


def test_a_loader_that_belongs_to_no_run_does_not_listen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker_service.loader.service.data_service", lambda address: pytest.fail("it listens"))
    stop: Any = None
    with pytest.raises(BadJobError, match="PSFLEET_JOB and PSFLEET_RUN are missing"):
        serve(settings.read({settings.ADDRESS: "127.0.0.1:2222", settings.RUN: RUN}), stop)


def test_a_worker_whose_loader_is_absent_takes_another_one(loaders: list[Address]) -> None:
    absent = free_addresses(1)
    assert first(3, data(numbers, [*absent, *loaders], start_secs=1)) == first(3, data(numbers, []))


def test_a_worker_that_has_lost_its_loader_takes_another_one_at_once(
    loaders: list[Address], monkeypatch: pytest.MonkeyPatch
) -> None:
    for_ever = 1e6
    monkeypatch.setattr("worker_service.loaded_data.OWN_SECS", for_ever)
    loaded = LoadedData(reached([*free_addresses(1), *loaders]), 0, job(start_secs=2 * for_ever))
    loaded._takes_any = True
    batches = loaded.read(numbers(0, 1).batch(4), "reading", 0, Reading())
    assert [batch[0].tolist() for batch in itertools.islice(batches, 2)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    batches.close()


def test_a_worker_continues_its_stream_with_the_loader_that_is_its_own_once_one_was_added(
    loaders: list[Address], caplog: pytest.LogCaptureFixture
) -> None:
    number = 1
    program = GraphProgram(loss=lambda batch: batch, train=numbers)
    worker = TrainingData(program, job(), 1, 2, False, reached(loaders), lambda: number)
    with caplog.at_level(logging.INFO, "psfleet.worker"):
        batches = worker.batches(0)
        found = [next(batches)[0].tolist() for _ in range(3)]
        number = 2
        found += [next(batches)[0].tolist() for _ in range(5)]
    assert found == first(8, data(numbers, [], 1, 2))
    readers = [record.loader for record in caplog.records if getattr(record, "event", "") == "loader"]  # type: ignore[attr-defined]
    assert readers == [0, 1]
    assert [message for message in caplog.messages if "loader 1 was added" in message] == [
        "loader 1 was added: batch 3 is read by it"
    ]


def test_a_stream_that_begins_again_is_a_lost_loader_and_no_batch_is_read_twice(loaders: list[Address]) -> None:
    """As tf.data service may, without an error."""
    again = tf.data.Dataset.from_tensor_slices((np.array([0, 1, 0]), np.array([7, 8, 7])))
    loaded, found = LoadedData(reached(loaders), 0, job()), list[int]()
    with LoaderWatch(reached(loaders)[0]) as watch:
        assert watch.has_begun()
        batches = (int(batch[0]) for batch in loaded._batches(again, "reading", watch))
        with pytest.raises(LoaderLostError, match="has begun its stream again"):
            found.extend(batches)
    assert found == [7, 8]


def test_loaders_that_never_start_are_named_after_the_deadline() -> None:
    (absent,) = free_addresses(1)
    with pytest.raises(DataStallError, match=rf"0.5 s waiting for loader 0 at {absent.control} or another one"):
        first(1, data(numbers, [absent], start_secs=0.5))


def test_a_loader_ends_after_those_that_read_from_it() -> None:
    (address,) = free_addresses(1)
    with ThreadPoolExecutor() as executor, ExitStack() as loader:
        loader.enter_context(running(address))
        with LoaderWatch(Loader(0, address, address)) as watch:
            assert watch.has_begun()
            end = executor.submit(loader.close)
            wait_until(lambda: not answers(address), 5.0, "the loader to refuse new calls")
            assert not watch.has_ended(0.3)
        end.result(timeout=WATCHED_SECS / 2)


def answers(address: Address) -> bool:
    with LoaderWatch(Loader(0, address, address)) as watch:
        return watch.has_begun()


def test_the_end_of_the_run_ends_its_loaders_alone() -> None:
    addresses = free_addresses(1)
    with running(addresses[0]) as loader:
        for run, ends in (("another", False), (RUN, True)):
            with FleetClient([], run, loaders=addresses) as fleet:
                fleet.release_loaders(pb.Outcome(exit_code=70))
            assert (loader.finished.is_set(), loader.exit_code) == (ends, 70 if ends else 0)
