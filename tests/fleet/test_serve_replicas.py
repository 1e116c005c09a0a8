"""Members that share the queries for one model: no query fails when one of them is killed or frozen."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from support.exported_run import BIAS, KERNEL, X, trained
from support.served import Served, query, serving

from psfleet.job.service_access import MODES

TIMEOUT_SECS = 1.0
SLACK_SECS = 0.5
"""How much later an answer may come, on a machine that runs other tests."""
CLIENTS, BEFORE, AFTER = 4, 20, 60
"""Queries of each client before and after the loss."""


@pytest.mark.extended
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_no_query_fails_when_a_replica_is_lost(tmp_path: Path, mode: str, number: signal.Signals) -> None:
    trained(tmp_path)
    options = ["--replicas", "2", "--members", mode, "--timeout-secs", str(TIMEOUT_SECS)]
    with serving(tmp_path, ["."], *options) as service:
        service.await_joins(2)

        def ask(client_number: int) -> list[float]:
            return [*asked(service, BEFORE), *(lose() if client_number == 0 else []), *asked(service, AFTER)]

        def lose() -> list[float]:
            os.kill(service.pid("member", 1), number)
            return []

        with ThreadPoolExecutor(CLIENTS) as pool:
            secs = [each for found in pool.map(ask, range(CLIENTS)) for each in found]
    assert len(secs) == CLIENTS * (BEFORE + AFTER)
    assert max(secs) < TIMEOUT_SECS + SLACK_SECS


def asked(service: Served, number: int) -> list[float]:
    """Seconds of so many queries, all of which have answers."""
    secs = []
    with service.client() as client:
        for _ in range(number):
            began = time.monotonic()
            status, answer = client.status_and_content("POST", "/v2/models/net/infer", query(X))
            secs.append(time.monotonic() - began)
            assert status == 200, answer
            (output,) = answer["outputs"]
            np.testing.assert_allclose(np.reshape(output["data"], output["shape"]), X @ KERNEL + BIAS, rtol=1e-6)
    return secs
