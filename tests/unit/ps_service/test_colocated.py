"""A worker that is a ps, too, has the threads that both need."""

from __future__ import annotations

import pytest

from ps_service.colocated import device_of_both
from psfleet.job.sections import Device
from psfleet.tf import server
from psfleet.tf.server import server_config


@pytest.mark.parametrize(
    ("threads", "cpus", "expected"), [(1, 8, 2), (2, 8, 2), (5, 1, 5), (0, 1, 2), (None, 1, 2), (0, 8, 0)]
)
def test_an_operation_that_waits_for_other_ps_leaves_a_thread_for_this_one(
    monkeypatch: pytest.MonkeyPatch, threads: int | None, cpus: int, expected: int
) -> None:
    monkeypatch.setattr(server, "num_usable_cpus", lambda: cpus)
    monkeypatch.setattr(server, "num_threads", lambda: 1 if threads == 1 else 0)
    device = device_of_both(Device(intra_op_threads=1, inter_op_threads=threads))
    config = server_config(device, reacts_while_computing=True)
    assert config.intra_op_parallelism_threads == 1
    assert config.inter_op_parallelism_threads == expected
