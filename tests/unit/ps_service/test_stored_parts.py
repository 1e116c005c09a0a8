"""What a ps does with a store: it never holds up a step, and nothing is lost by its failures."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from support.checkpoint_samples import contents, sample_layout, save
from support.chief_samples import stored_job, stored_root
from support.s3_server import BROKEN, DENIED, S3Server, hold

from ps_service.checkpoint_writer import CheckpointWriter
from ps_service.restore import read_checkpoint
from psfleet.checkpoint import store_client
from psfleet.checkpoint.object_store import StoreFolder
from psfleet.errors import BadJobError, StorageError
from psfleet.polling import wait_until

LAYOUT = sample_layout(num_ps=1)
WAIT_SECS = 10.0


def writer_of(bucket: StoreFolder) -> tuple[CheckpointWriter, list[str]]:
    failures: list[str] = []
    return CheckpointWriter(stored_root(bucket), "run", 1, 0, LAYOUT, lambda text, _: failures.append(text)), failures


def finite() -> Any:
    content = contents(LAYOUT, 1)[0]
    for vector in (content.parameters, *content.slots.values()):
        vector[:] = 1.0
    content.state[:] = 0
    return content


def test_a_ps_writes_its_part_into_the_store(bucket: StoreFolder) -> None:
    writer, failures = writer_of(bucket)
    writer.save(7, finite)
    wait_until(lambda: writer.has_ended(7), WAIT_SECS, "the part")
    writer.close()
    [part] = writer.parts()
    assert part.record is not None, part
    assert (stored_root(bucket) / "00000007-g1").sizes() == {part.record.file: part.record.num_bytes}
    assert failures == []


def test_a_part_that_the_store_refuses_is_reported_and_the_next_one_is_written(
    s3: S3Server, bucket: StoreFolder
) -> None:
    writer, failures = writer_of(bucket)
    s3.fault = lambda method, path: DENIED if "00000007" in path else None
    for step in (7, 8):
        writer.save(step, finite)
        wait_until(lambda step=step: writer.has_ended(step), WAIT_SECS, "the part")
    writer.close()
    refused, written = writer.parts()
    assert "does not exist in our records" in refused.error
    assert str(stored_root(bucket)) in refused.error
    assert written.record is not None
    assert failures == []


def test_the_part_of_the_last_step_is_tried_again(
    s3: S3Server, bucket: StoreFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ps_service.checkpoint_writer.RETRY_SECS", 0.05)
    writer, _ = writer_of(bucket)
    s3.fault = lambda method, path: DENIED
    writer.save(7, finite, is_final=lambda: True)
    wait_until(lambda: any(part.is_retried for part in writer.parts()), WAIT_SECS, "the refusal")
    s3.fault = lambda method, path: None
    wait_until(lambda: writer.has_ended(7), WAIT_SECS, "the part")
    writer.close()
    assert [part.error for part in writer.parts()] == [""]


def test_a_part_that_the_store_does_not_take_holds_up_no_step(
    s3: S3Server, bucket: StoreFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_client, "CALL_SECS", 0.3)
    released = threading.Event()
    s3.fault = lambda method, path: hold(released)
    writer, _ = writer_of(bucket)
    try:
        writer.save(7, finite)
        assert writer.await_turn(WAIT_SECS), "the snapshot is read before the part is written"
        wait_until(lambda: writer.has_ended(7), WAIT_SECS, "the part to be given up")
        assert "has not answered for 0.3 s" in writer.parts()[0].error
        writer.close()
    finally:
        released.set()


def test_a_ps_restores_its_shard_from_the_store(s3: S3Server, bucket: StoreFolder) -> None:
    saved = save(stored_root(bucket), 40)
    plan: Any = SimpleNamespace(job=stored_job(bucket), layout=sample_layout(), shard=1)
    restored = read_checkpoint(saved.folder, plan)
    assert restored.content.parameters.tobytes() == contents(sample_layout(), 1)[1].parameters.tobytes()
    s3.fault = lambda method, path: DENIED
    with pytest.raises(BadJobError, match=r"checkpoint\.store"):
        read_checkpoint(saved.folder, plan)
    s3.fault = lambda method, path: BROKEN
    with pytest.raises(StorageError):
        read_checkpoint(saved.folder, plan)
