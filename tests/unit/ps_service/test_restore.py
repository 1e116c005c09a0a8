"""What a ps answers if the disk never gives the checkpoint that it is asked to restore."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from support.checkpoint_samples import sample_layout, save
from support.chief_samples import sample_job

from ps_service.refusals import refusals
from ps_service.restore import read_checkpoint
from psfleet.errors import StorageError


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
