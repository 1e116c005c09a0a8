"""The orders of passes with `input.sharding: dynamic`: those that training has had do not come first again."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import tensorflow as tf
from support.loaders import RUN, reached, running
from support.program_samples import sample_job

from psfleet.addresses import Address
from psfleet.control.fleet_client import FleetClient
from psfleet.job.program import GraphProgram
from psfleet.processes.ports import free_addresses
from worker_service.batch_reader import Reading
from worker_service.dynamic_data import DynamicData
from worker_service.joined_batches import Piece
from worker_service.pass_counts import PassCounts

PIECES = 6
"""Of 4 examples, in a pass."""


def numbers(part: int, parts: int) -> tf.data.Dataset:
    return tf.data.Dataset.range(4 * PIECES).shard(parts, part)


@contextmanager
def reader(address: Address, start: int = 0) -> Iterator[Iterator[Piece]]:
    with FleetClient([], RUN, loaders=[address]) as fleet:
        program = GraphProgram(loss=lambda batch: batch, train=numbers)
        job = sample_job(shuffle=4 * PIECES)
        data = DynamicData(program, job, reached([address]), fleet.loader_process, PassCounts())
        with data.opened(Reading(), start) as order:
            yield order.pieces()


def next_pass(pieces: Iterator[Piece]) -> list[int]:
    examples = [example for piece in itertools.islice(pieces, PIECES) for example in piece.arrays[0].tolist()]
    assert sorted(examples) == list(range(4 * PIECES))
    return examples


def first_passes(start: int = 0) -> list[list[int]]:
    """The first three of a loader and a worker that are new."""
    (address,) = free_addresses(1)
    with running(address, True), reader(address, start) as pieces:
        return [next_pass(pieces) for _ in range(3)]


def test_a_run_begins_with_the_orders_of_the_seed_and_one_that_is_resumed_with_others() -> None:
    passes = first_passes()
    assert first_passes() == passes
    assert first_passes(start=1) != passes
    assert first_passes(start=10)[0] not in passes


def test_a_loader_that_is_started_again_continues_with_the_order_of_the_next_pass() -> None:
    passes, (address,) = first_passes(), free_addresses(1)
    with ExitStack() as loader:
        loader.enter_context(running(address, True))
        with reader(address) as pieces:
            lost = next(pieces)
            assert lost.arrays[0].tolist() == passes[0][:4]
            loader.close()
            loader.enter_context(running(address, True))
            following = next(piece for piece in pieces if piece.key.process != lost.key.process)
            assert (following.key.number, following.arrays[0].tolist()) == (0, passes[1][:4])
