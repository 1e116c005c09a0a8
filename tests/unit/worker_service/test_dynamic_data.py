"""`input.sharding: dynamic`: each example of an epoch goes to one worker, and a loss is counted."""

from __future__ import annotations

import itertools
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

import keras
import pytest
import tensorflow as tf
from support.loaders import RUN, reached, running
from support.program_samples import sample_job
from support.rows import first_rows

from psfleet.addresses import Address
from psfleet.control import control_pb2 as pb
from psfleet.control.fleet_client import FleetClient
from psfleet.errors import DataStallError, LostPeerError, ProgramError
from psfleet.job.program import GraphProgram
from psfleet.processes.ports import free_addresses
from worker_service.batch_reader import Batch, BatchReader, Reading
from worker_service.chief.data_epochs import DataEpochs
from worker_service.dynamic_data import DynamicData
from worker_service.joined_batches import Piece
from worker_service.pass_counts import PassCounts, PassKey

EXAMPLES = 98
"""Neither a multiple of the batches of 4, nor are the parts of 2 loaders."""
Data = Callable[[int, int], tf.data.Dataset]


def numbers(part: int, parts: int) -> tf.data.Dataset:
    return tf.data.Dataset.range(EXAMPLES).shard(parts, part)


def of_unknown_length(part: int, parts: int) -> tf.data.Dataset:
    return numbers(part, parts).filter(lambda number: number >= 0)


@pytest.fixture
def addresses() -> Iterator[list[Address]]:
    found = free_addresses(2)
    with running(found[0], True), running(found[1], True):
        yield found


def worker(addresses: list[Address], fleet: FleetClient, train: Data = numbers, start_secs: float = 60) -> DynamicData:
    job = sample_job(shuffle=5)
    deadlines = job.deadlines.model_copy(update={"start_secs": start_secs})
    program = GraphProgram(loss=lambda batch: batch, train=train)
    job = job.model_copy(update={"deadlines": deadlines})
    return DynamicData(program, job, reached(addresses), fleet.loader_process, PassCounts())


def client(addresses: list[Address], index: int = 0) -> FleetClient:
    fleet = FleetClient([], RUN, loaders=addresses)
    fleet.identify(pb.Member(index=index, incarnation=index + 1, process=f"process-{index}"))
    return fleet


def taken(batches: Iterator[Batch], reading: Reading) -> list[int]:
    """The examples of the next batch, which training takes."""
    (examples, *_) = next(batches)
    reading.on_take()
    return examples.tolist()


def report(fleet: FleetClient, data: DynamicData, epochs: DataEpochs) -> None:
    """Reports what was read to the loaders that answer, and collects it as the chief does."""
    for loader in (0, 1):
        with suppress(LostPeerError):
            fleet.report_passes(loader, data.counts.newest(), 0)
    epochs.note(fleet.describe_loaders())


@pytest.mark.parametrize("workers", [1, 3])
def test_each_example_comes_once_in_each_of_three_epochs(addresses: list[Address], workers: int) -> None:
    """A worker stops when it has come to the fifth pass of each loader: it has nothing of an earlier one then."""
    read: list[Piece] = []
    with ExitStack() as stack:

        def read_epochs(index: int) -> None:
            fleet = stack.enter_context(client(addresses, index))
            newest = {0: 0, 1: 0}
            with worker(addresses, fleet).opened(Reading(), 0) as order:
                for piece in order.pieces():
                    read.append(piece)
                    newest[piece.key.loader] = piece.key.number
                    if min(newest.values()) >= 4:
                        break

        with ThreadPoolExecutor(workers) as executor:
            list(executor.map(read_epochs, range(workers)))
    found: dict[PassKey, list[int]] = defaultdict(list)
    for piece in read:
        found[piece.key].extend(piece.arrays[0].tolist())
    processes = {key.loader: key.process for key in found}
    for number in range(3):
        epoch = [found[PassKey(loader, processes[loader], number)] for loader in (0, 1)]
        assert sorted(itertools.chain(*epoch)) == list(range(EXAMPLES)), f"epoch {number}"


def test_batches_are_full_across_epochs_and_the_first_epochs_come_whole(addresses: list[Address]) -> None:
    with client(addresses) as fleet:
        data = worker(addresses, fleet)
        batches = data.batches(0, Reading())
        found = [next(batches)[0].tolist() for _ in range(3 * EXAMPLES // 4 + 10)]
        batches.close()
    assert {len(batch) for batch in found} == {4}
    examples = list(itertools.chain(*found))
    for epoch in range(3):
        assert sorted(examples[epoch * EXAMPLES : (epoch + 1) * EXAMPLES]) == list(range(EXAMPLES))


@pytest.mark.parametrize("train", first_rows([numbers, of_unknown_length]))
def test_the_rest_of_a_killed_loader_s_pass_is_lost_and_counted_and_nothing_comes_twice(train: Data) -> None:
    addresses = free_addresses(2)
    epochs, read, reading = DataEpochs(), list[int](), Reading()
    with client(addresses) as fleet, running(addresses[0], True), ExitStack() as second:
        second.enter_context(running(addresses[1], True))
        data = worker(addresses, fleet, train)
        batches = data.batches(0, reading)

        def take(count: int) -> None:
            read.extend(number for _ in range(count) for number in taken(batches, reading))

        def collect() -> None:
            report(fleet, data, epochs)

        take(EXAMPLES // 4 + 2)
        collect()
        second.close()
        take(EXAMPLES // 4)
        collect()
        second.enter_context(running(addresses[1], True))
        while (found := epochs.record()) is None or found.ended_epochs < 3:
            take(1)
            collect()
        batches.close()
    whole, broken, *_ = found.epochs
    assert (whole.delivered, whole.lost) == (EXAMPLES, 0)
    assert broken.lost is not None
    assert 0 < broken.lost <= EXAMPLES // 2
    assert broken.delivered + broken.lost == EXAMPLES
    assert found.num_examples == EXAMPLES
    assert max(Counter(read).values()) <= len(found.epochs), "at most once in each epoch"
    assert found.lost == sum(epoch.lost or 0 for epoch in found.epochs)
    assert found.delivered == len(read)


def test_what_a_killed_worker_was_not_given_is_lost_and_a_new_one_continues_the_epoch(addresses: list[Address]) -> None:
    epochs, read = DataEpochs(), list[int]()
    for index, count in ((0, EXAMPLES // 8), (1, 10**6)):
        with client(addresses) as fleet:
            member = pb.Member(index=0, incarnation=index + 1, process=f"process-{index}")
            fleet.identify(member)
            data = worker(addresses, fleet)
            reading = Reading()
            batches = data.batches(0, reading)
            for _ in range(count):
                read.extend(taken(batches, reading))
                report(fleet, data, epochs)
                record = epochs.record()
                if record is not None and record.ended_epochs >= 2:
                    break
            batches.close()
    assert record is not None
    first, second = record.epochs[:2]
    assert first.lost is not None
    assert first.lost < EXAMPLES // 2, "no more than it had read ahead"
    assert first.delivered + first.lost == EXAMPLES
    assert (second.delivered, second.lost) == (EXAMPLES, 0)
    assert max(Counter(read).values()) <= len(record.epochs), "at most once in each epoch"


def test_a_reader_that_is_opened_again_continues_the_epoch(addresses: list[Address]) -> None:
    """As after a wait for a batch that was too long."""
    with client(addresses) as fleet:
        data = worker(addresses, fleet)
        read: list[int] = []
        for count in (6, EXAMPLES // 4):
            reading = Reading()
            batches = data.batches(0, reading)
            read.extend(number for _ in range(count) for number in taken(batches, reading))
            batches.close()
    given = [each for each in data.counts.newest() if each.number == 0]
    assert sum(each.examples for each in given) <= EXAMPLES
    assert max(Counter(read[: sum(each.examples for each in given)]).values()) == 1


def test_a_batch_counts_as_soon_as_training_has_it_and_one_that_is_read_ahead_does_not(
    addresses: list[Address],
) -> None:
    with client(addresses) as fleet:
        data = worker(addresses, fleet)
        reader = BatchReader(partial(data.batches, 0))
        for number in range(1, 4):
            assert reader.get(60.0) is not None
            assert sum(each.examples for each in data.counts.newest()) == 4 * number
        reader.close()


def endless(part: int, parts: int) -> tf.data.Dataset:
    return numbers(part, parts).repeat()


def random(part: int, parts: int) -> tf.data.Dataset:
    return numbers(part, parts).shuffle(8)


def by_keras(part: int, parts: int) -> tf.data.Dataset:
    layer = keras.layers.GaussianNoise(1.0)
    return numbers(part, parts).map(lambda number: layer(tf.cast(number, tf.float32), training=True))


def by_generator(part: int, parts: int) -> tf.data.Dataset:
    generator = tf.random.Generator.from_seed(1)
    return numbers(part, parts).map(lambda number: generator.uniform([]))


def by_python(part: int, parts: int) -> tf.data.Dataset:
    return numbers(part, parts).map(lambda number: tf.py_function(lambda given: given, [number], tf.int64))


@pytest.mark.parametrize(
    ("train", "message"),
    [
        (endless, r"repeats for ever, expected no repeat\(\) with input.sharding: dynamic"),
        (random, "is random, .* expected data that train.shuffle shuffles, or input.sharding: static"),
        (by_keras, "is random, .* expected data that train.shuffle shuffles"),
        (by_generator, "is random, .* expected data that train.shuffle shuffles"),
        (by_python, "calls Python"),
    ],
)
def test_data_over_which_loaders_cannot_pass_again_are_refused(train: Any, message: str) -> None:
    addresses = free_addresses(1)
    with client(addresses) as fleet, pytest.raises(ProgramError, match=message):
        next(worker(addresses, fleet, train).batches(0, Reading()))


@pytest.mark.parametrize(
    ("least", "message"),
    [
        (EXAMPLES, "are empty, expected the same examples in every epoch"),
        (EXAMPLES - 5, "have 3 examples, expected at least train.batch_size = 4"),
    ],
)
def test_a_part_that_turns_out_to_have_fewer_examples_than_a_batch_is_refused(
    addresses: list[Address], least: int, message: str
) -> None:
    """Of unknown cardinality: the loader of an empty part would begin pass after pass, and the epoch would not end."""

    def train(part: int, parts: int) -> tf.data.Dataset:
        return numbers(part, parts).filter(lambda number: number >= (least if part else 0))

    expected = f"^program 'program:build': the training data of shard 1 {message}$"
    with client(addresses) as fleet, pytest.raises(ProgramError, match=expected):
        list(itertools.islice(worker(addresses, fleet, train).batches(0, Reading()), EXAMPLES))


def test_loaders_that_never_answer_are_named_after_the_deadline() -> None:
    (absent,) = free_addresses(1)
    with (
        client([absent]) as fleet,
        pytest.raises(DataStallError, match=rf"0.5 s waiting for loader 0 at {absent.control} or another one"),
    ):
        next(worker([absent], fleet, start_secs=0.5).batches(0, Reading()))


def test_an_error_of_the_data_set_is_the_program_s(addresses: list[Address]) -> None:
    def missing(part: int, parts: int) -> tf.data.Dataset:
        return tf.data.TextLineDataset("/missing/examples.txt").map(tf.strings.length)

    with (
        client(addresses) as fleet,
        pytest.raises(ProgramError, match=r"NotFoundError: .*/missing/examples.txt"),
    ):
        next(worker(addresses, fleet, missing).batches(0, Reading()))


def test_closing_ends_the_threads(addresses: list[Address]) -> None:
    with client(addresses) as fleet:
        batches = worker(addresses, fleet).batches(0, Reading())
        next(batches)
        batches.close()
        for thread in threading.enumerate():
            if thread.name.startswith("part-"):
                thread.join(10.0)
                assert not thread.is_alive()
