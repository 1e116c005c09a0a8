"""The event loop of a front, whose signs of life end when it stands still."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from psfleet import errors
from psfleet.inference.ensemble import Ensemble
from psfleet.inference.metrics import ServiceMetrics
from psfleet.service.process import Stop
from worker_service.front import service
from worker_service.trial.signs_of_life import BEAT_SECS, SignsOfLife

BEATS = int(service.LOOP_SECS / BEAT_SECS) + 2
"""More than the event loop may miss."""


@pytest.mark.parametrize("stands_still", [True, False])
def test_a_front_ends_when_its_event_loop_stands_still(
    stands_still: bool, tmp_path: Path, stop: Stop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "PROBE_SECS", 0.0)
    ended: list[int] = []
    life = SignsOfLife.in_file(tmp_path / "alive", ended.append)

    async def beat() -> None:
        task = asyncio.create_task(service.watch(Ensemble("net", 1, 1.0), ServiceMetrics("net"), life, stop))
        await asyncio.sleep(0)
        for _ in range(BEATS):
            life.beat()
            if not stands_still:
                await asyncio.sleep(0)
        task.cancel()

    asyncio.run(beat())
    assert ended == ([errors.LOST_PEERS] if stands_still else [])
