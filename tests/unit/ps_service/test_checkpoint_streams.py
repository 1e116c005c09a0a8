"""Checkpoints over the control plane, at a real port: what a ps sends and receives, and whose streams it ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.chief_samples import sample_job
from support.control_calls import JOB, join

from ps_service import service
from ps_service.checkpoint_writer import CheckpointWriter
from ps_service.part_holder import PartHolder
from ps_service.restore import Restored
from ps_service.servicer import ControlServicer
from ps_service.worker_record import LEASE_SECS
from psfleet.checkpoint.part_writing import encode_part, write_chunks
from psfleet.checkpoint.parts import ShardContent
from psfleet.control import control_pb2 as pb
from psfleet.control.client import PsClient
from psfleet.control.server import serving
from psfleet.errors import BadJobError, LostPeerError, ReplacedError
from psfleet.job.job import parse_job
from psfleet.layout import Layout, TensorSpec
from psfleet.polling import wait_until
from psfleet.processes.ports import free_addresses

WAIT_SECS = 10.0
LAYOUT = Layout.plan([TensorSpec("w", (8 * 1024 * 1024,))], [], [], num_ps=1, bucket_bytes=64 * 1024 * 1024)
"""32 MiB: more than gRPC holds on its way."""
STEP = 20
GENERATION = 3


class Ps:
    """A ps at a port, whose shard is built by nobody.

    Attributes:
        built: What shards would start from.
    """

    def __init__(self, servicer: ControlServicer, address: Any) -> None:
        self.built: list[Restored] = []
        self._address = address
        [self.run] = servicer.runs()
        # No lease ends because this machine is busy.
        now = time.monotonic()
        self.run._clock = lambda: now
        builder: Any = servicer._builder
        builder.build = lambda run, plan, restored: self.built.append(restored)

    def hold(self) -> PartHolder:
        """Has a shard of a generation whose part of a step is held."""
        writer = CheckpointWriter(None, "run", GENERATION, 0, LAYOUT, lambda *_: None)
        writer.held.hold(STEP, encode_part(0, LAYOUT, content(), STEP, GENERATION, "run"))
        shard: Any = SimpleNamespace(plan=SimpleNamespace(generation=GENERATION, layout=LAYOUT, job=sample_job()))
        shard.writer, shard.set_present = writer, lambda present: None
        self.run.install(shard)
        return writer.held

    @contextmanager
    def chief(self, process: str) -> Iterator[PsClient]:
        """A client of a process that joins as the chief."""
        client = PsClient(self._address, "run")
        join(client, process, index=0)
        try:
            yield client
        finally:
            client.close()


@pytest.fixture
def ps() -> Iterator[Ps]:
    plane: Any = None
    servicer = ControlServicer("grpc://localhost:1", "run", "", plane)
    [address] = free_addresses(1)
    with serving(address, servicer):
        yield Ps(servicer, address)


def content() -> ShardContent:
    empty = np.zeros(0, np.uint8)
    return ShardContent(np.arange(LAYOUT.parameters.shard_size, dtype=np.float32), {}, {}, empty, empty)


def restore(client: PsClient, ranges: Iterator[tuple[str, int, bytes]], **changes: Any) -> pb.ShardState:
    plan: dict[str, Any] = {
        "shard": 0,
        "generation": GENERATION,
        "job_json": parse_job(JOB).model_dump_json(),
        "layout": LAYOUT,
        "checkpoint_folder": "",
        "checkpoints_root": "",
        "origin": pb.ShardOrigin(step=STEP, optimizer="momentum", slots=["m"], scalars={"power": 0.3}),
        "timeout_secs": 30.0,
    }
    return client.restore(ranges=ranges, **plan | changes)


def all_ranges() -> Iterator[tuple[str, int, bytes]]:
    """The parameters in ranges; the slot has one value that is not zero."""
    for start in range(0, LAYOUT.parameters.shard_size, 2**18):
        yield "parameter", start, content().parameters[start : start + 2**18].tobytes()
    yield "slot/m", 7, np.float32(0.5).tobytes()


def test_the_chief_fetches_the_part_that_a_ps_holds(ps: Ps, tmp_path: Path) -> None:
    holder = ps.hold()
    with ps.chief("chief") as chief:
        written = write_chunks(tmp_path, "part", chief.fetch_part(GENERATION, STEP))
        assert written.num_bytes > LAYOUT.parameters.specs[0].num_bytes
        with holder.reading(STEP, lambda: None) as chunks:
            assert b"".join(chunks) == (tmp_path / "part").read_bytes()
        chief.release_part(GENERATION - 1, STEP)
        assert holder.is_held(STEP), "another generation's part was dropped"
        chief.release_part(GENERATION, STEP)
        assert not holder.is_held(STEP)
        chief.release_part(GENERATION, STEP)


@pytest.mark.parametrize(("generation", "step"), [(GENERATION, STEP + 1), (GENERATION + 1, STEP)])
def test_a_part_that_is_not_held_is_refused_and_may_be_asked_for_again(ps: Ps, generation: int, step: int) -> None:
    ps.hold()
    with ps.chief("chief") as chief, pytest.raises(LostPeerError):
        next(iter(chief.fetch_part(generation, step)))


def test_steps_wait_for_a_chief_once_it_fetches_and_not_for_one_that_replaces_it(ps: Ps) -> None:
    """The new one loads its program for a minute, and others train on meanwhile."""
    ps.hold()
    with ps.chief("older") as older:
        assert not ps.run.is_followed()
        list(older.fetch_part(GENERATION, STEP))
        assert ps.run.is_followed()
        with ps.chief("newer") as newer:
            assert not ps.run.is_followed()
            list(newer.fetch_part(GENERATION, STEP))
            assert ps.run.is_followed()
            ps.run.finish(pb.Outcome(exit_code=75))
            assert not ps.run.is_followed()


def test_a_chief_that_is_replaced_gets_no_more_of_a_part(ps: Ps) -> None:
    """It was frozen in the middle of its fetch, and continues."""
    ps.hold()
    with ps.chief("older") as older:
        chunks = iter(older.fetch_part(GENERATION, STEP))
        next(chunks)
        with ps.chief("newer"), pytest.raises(ReplacedError, match="was replaced by the process at"):
            list(chunks)
        with pytest.raises(ReplacedError):
            older.release_part(GENERATION, STEP)
        with pytest.raises(ReplacedError):
            next(iter(older.fetch_part(GENERATION, STEP)))


def test_streams_of_a_chief_that_is_not_alive_end(ps: Ps) -> None:
    """It is frozen, and nothing replaces it: 16 of them on a ps that many runs share would have all of its threads."""
    holder, ended = ps.hold(), list[str]()
    servicer: Any = SimpleNamespace(runs=lambda: [ps.run], drop_finished=lambda: None)
    settings: Any = SimpleNamespace(job=None)
    with ps.chief("chief") as chief, ps.run.restoring.only(lambda: ended.append("restore")):
        chunks = iter(chief.fetch_part(GENERATION, STEP))
        next(chunks)
        service._check_runs(servicer, settings)
        assert next(chunks)
        assert not ended
        ps.run._clock = lambda: time.monotonic() + LEASE_SECS
        service._check_runs(servicer, settings)
        with pytest.raises(LostPeerError):
            list(chunks)
    assert ended == ["restore"]
    assert holder.is_held(STEP), "the part can be fetched again"


def test_a_ps_that_is_gone_in_the_middle_of_a_part_ends_the_fetch(ps: Ps) -> None:
    holder = ps.hold()
    with ps.chief("chief") as chief:
        chunks = iter(chief.fetch_part(GENERATION, STEP))
        next(chunks)
        holder.close()
        with pytest.raises(LostPeerError):
            list(chunks)


def test_a_shard_is_restored_from_what_the_chief_sends(ps: Ps) -> None:
    with ps.chief("chief") as chief:
        restore(chief, all_ranges())
        assert ps.run.is_followed()
    [restored] = ps.built
    assert (restored.step, restored.optimizer) == (STEP, "momentum")
    assert restored.content.parameters.tobytes() == content().parameters.tobytes()
    slot = restored.content.slots["m"]
    assert (slot[7], np.count_nonzero(slot), slot.shape) == (0.5, 1, (LAYOUT.parameters.shard_size,))
    assert restored.content.scalars["power"] == np.float32(0.3)


def test_an_error_of_the_chiefs_disk_is_the_chiefs_and_builds_nothing(ps: Ps) -> None:
    def failing() -> Iterator[tuple[str, int, bytes]]:
        yield next(all_ranges())
        raise OSError(5, "Input/output error")

    with ps.chief("chief") as chief, pytest.raises(OSError, match="Input/output error"):
        restore(chief, failing())
    assert not ps.built


@pytest.mark.parametrize(
    "wrong", [("parameter", LAYOUT.parameters.shard_size, bytes(4)), ("parameter", 0, bytes(3)), ("slot/x", 0, b"")]
)
def test_a_range_outside_of_its_vector_is_refused(ps: Ps, wrong: tuple[str, int, bytes]) -> None:
    with ps.chief("chief") as chief, pytest.raises(BadJobError, match="expected a range of its elements"):
        restore(chief, iter([wrong]))
    assert not ps.built


def test_a_chief_that_is_frozen_while_it_sends_does_not_hold_up_the_one_that_replaces_it(ps: Ps) -> None:
    frozen, thawed = threading.Event(), threading.Event()

    def freezing() -> Iterator[tuple[str, int, bytes]]:
        yield next(all_ranges())
        frozen.set()
        assert thawed.wait(WAIT_SECS)
        yield from all_ranges()

    with ps.chief("older") as older, ThreadPoolExecutor(1) as pool:
        call = pool.submit(restore, older, freezing())
        assert frozen.wait(WAIT_SECS)
        with ps.chief("newer") as newer:
            restore(newer, all_ranges(), generation=GENERATION + 1)
            [restored] = ps.built
        wait_until(call.done, WAIT_SECS, "the end of the older chief's call")
        thawed.set()
        assert isinstance(call.exception(), LostPeerError | ReplacedError)
    assert ps.built == [restored]
