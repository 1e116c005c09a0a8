"""Sync mode with several segments on a ps: each makes a step when its own pushes have arrived."""

from __future__ import annotations

import pytest
from support.graph_fleet import STEP_SECS, batch, graph_fleet

from psfleet.errors import LostPeerError


def test_a_worker_that_dies_between_the_pushes_to_two_segments_of_a_ps_costs_nothing() -> None:
    """Segment 0 makes the step and segment 1 waits: the successor repeats the gradient on the parameters of before."""
    with graph_fleet(fleet={"workers": 2}) as fleet, fleet.worker(1) as other:
        [shard] = fleet.shards
        with fleet.worker(0) as dying:
            steps = [dying.push(1, 0), other.push(3, 0)]
            fleet.advance()
            assert [step.result(STEP_SECS)[1].tolist() for step in steps] == [[[1, 100]]] * 2
            updating = fleet.threads.submit(shard.updates.advance, hold=False)
            last = other.push(5, 1)
            lost = fleet.threads.submit(dying.session.train, batch(2, blocked=True), 1, 1)
            fleet.wait_for_steps([2, 1])
            dying.session.close(wait_secs=0)
            with pytest.raises(LostPeerError):
                lost.result(STEP_SECS)
        with fleet.worker(0) as successor:
            assert successor.start.shards.tolist() == [[1, 100]], "a ps is at the lowest step of its segments"
            repeat = successor.push(2, 1)
            assert updating.result(STEP_SECS) == 2
            for step in (repeat, last):
                assert step.result(STEP_SECS)[1].tolist() == [[2, 100]]
            steps = [successor.push(0, 2), other.push(0, 2)]
            fleet.advance()
            assert [step.result(STEP_SECS)[1].tolist() for step in steps] == [[[3, 100]]] * 2
        first, second = -2.0, -2.0
        assert fleet.weights() == pytest.approx([first - 3.5 * (1 + second / 8), second - 3.5 * (1 + first / 8)], 1e-6)
        counters = shard.counters()
        assert counters.used[:2].tolist() == [3, 3]
        assert counters.pushed[:2].tolist() == [4, 3], "segment 0 got the repeated gradient twice"
