"""What a shard starts from: read from a disk that may never answer, or received in pieces."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from support.checkpoint_samples import contents, sample_layout, save
from support.chief_samples import sample_job

from ps_service.refusals import refusals
from ps_service.restore import read_checkpoint, receive
from psfleet.checkpoint.manifest import Checkpoint
from psfleet.control import control_pb2 as pb
from psfleet.errors import LostPeerError, StorageError
from psfleet.layout import Layout
from worker_service.chief.disk import Disk
from worker_service.chief.shard_content import sending


class AbortedError(Exception):
    """A call was ended with a status."""


class Context:
    """The server's side of one call."""

    def abort(self, code: grpc.StatusCode, details: str) -> None:
        """See grpc.ServicerContext."""
        raise AbortedError(code, details)


def plan(start_secs: float) -> Any:
    job = sample_job(deadlines={"start_secs": start_secs})
    return SimpleNamespace(job=job, layout=sample_layout(), shard=1)


def test_a_shard_is_read_from_a_checkpoint(tmp_path: Path) -> None:
    saved = save(tmp_path, 40)
    restored = read_checkpoint(saved.folder, plan(60))
    assert (restored.step, restored.optimizer) == (saved.step, saved.optimizer)
    assert restored.content.parameters.shape == (sample_layout().parameters.shard_size,)


def test_a_disk_that_never_answers_is_named_and_the_chief_may_try_again(tmp_path: Path) -> None:
    saved = save(tmp_path, 40)
    path = saved.folder / "manifest.json"
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(StorageError) as caught:
        read_checkpoint(saved.folder, plan(0.2))
    os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))
    assert str(caught.value) == f"the disk has not answered for 0.18 s to a read of {saved.folder}"
    context: Any = Context()
    with pytest.raises(AbortedError) as aborted, refusals(context):
        raise caught.value
    assert aborted.value.args[0] == grpc.StatusCode.UNAVAILABLE, "another status would end the run with 78"


def requests(checkpoint: Checkpoint, layout: Layout, shard: int) -> tuple[pb.ShardOrigin, Iterator[pb.RestoreRequest]]:
    """What a chief sends to a ps."""
    with sending(checkpoint, layout, shard, Disk()) as content:
        sent = [pb.RestoreRequest(vector=name, start=start, data=data) for name, start, data in content.ranges]
    total = hashlib.sha256(b"".join(request.data for request in sent)).hexdigest()
    return content.origin, iter([*sent, pb.RestoreRequest(sha256=total)])


@pytest.mark.parametrize("num_ps", [1, 2, 3])
@pytest.mark.parametrize("chunk_bytes", [4, 100, 2**20])
def test_any_number_of_ps_receives_bit_for_bit_what_two_have_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_ps: int, chunk_bytes: int
) -> None:
    monkeypatch.setattr("worker_service.chief.shard_content.CHUNK_BYTES", chunk_bytes)
    saved, layout = save(tmp_path, 40), sample_layout(num_ps)
    for shard, expected in enumerate(contents(layout, seed=1)):
        asked: Any = SimpleNamespace(layout=layout, shard=shard)
        origin, sent = requests(saved, layout, shard)
        received = receive(origin, asked, sent)
        assert (received.step, received.optimizer) == (40, "adam")
        for name, vector in expected.vectors().items():
            assert received.content.vectors()[name].tobytes() == vector.tobytes(), name
        owner = min(shard, saved.layout.num_ps - 1)
        assert received.content.scalars == {"beta1_power": 0.5, "owner": owner}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda sent: sent[:-1], "has ended early"),
        (lambda sent: [*sent[:3], *sent[4:]], "expected"),
        (lambda sent: [*sent[:-1], pb.RestoreRequest(sha256="0" * 64)], "expected 00000"),
    ],
    ids=["the end is missing", "a range is missing", "another sum"],
)
def test_what_arrives_otherwise_than_it_was_sent_is_no_content(tmp_path: Path, change: Any, expected: str) -> None:
    layout = sample_layout()
    origin, sent = requests(save(tmp_path, 40), layout, 0)
    asked: Any = SimpleNamespace(layout=layout, shard=0)
    with pytest.raises(LostPeerError, match=f"content of shard 0 at step 40 .*{expected}"):
        receive(origin, asked, iter(change(list(sent))))
