"""Which gradients are part of an average in sync mode, whatever dies when."""

from __future__ import annotations

import pytest
from support.graph_fleet import DYING_SECS, STEP_SECS, batch, graph_fleet

from psfleet.errors import LostPeerError


def test_a_worker_that_dies_in_the_middle_of_a_push_has_no_part_in_the_average() -> None:
    """Its successor's repeat is counted once in both buckets: (1 + 3) / 2."""
    with graph_fleet(fleet={"workers": 2}) as fleet:
        with pytest.raises(LostPeerError), fleet.worker(0, step_secs=DYING_SECS) as dying:
            dying.session.train(batch(1, blocked=True), 0, 0)
        with fleet.worker(0) as successor, fleet.worker(1) as other:
            steps = [successor.push(1, 0), other.push(3, 0)]
            fleet.advance()
            assert [step.result(STEP_SECS)[1].tolist() for step in steps] == [[[1, 100]], [[1, 100]]]
        assert fleet.weights() == [-2, -2]
        assert fleet.shards[0].counters().used[:2].tolist() == [1, 1]


def test_exactly_the_quorum_is_averaged_and_the_rest_is_dropped() -> None:
    """Three gradients are there before the update of a quorum of 2: the first two are used."""
    with graph_fleet(fleet={"workers": 2, "spares": 1}) as fleet:
        with fleet.worker(0) as first, fleet.worker(1) as second, fleet.worker(2) as third:
            steps = []
            for index, (worker, x) in enumerate([(first, 1), (second, 3), (third, 100)]):
                steps.append(worker.push(x, 0))
                fleet.wait_for_size("gradients", index + 1)
            fleet.advance()
            for step in steps:
                assert step.result(STEP_SECS)[1].tolist() == [[1, 100]]
        assert fleet.weights() == [-2, -2]
        counters = fleet.shards[0].counters()
        assert counters.pushed.sum() - counters.used.sum() == 1


def test_a_gradient_that_a_restarted_worker_repeats_counts_once() -> None:
    """The first one is in the queue when the worker is killed; the ps takes both, and waits for another worker."""
    with graph_fleet(fleet={"workers": 2}) as fleet:
        with fleet.worker(0) as killed:
            killed.push(1, 0)
            fleet.wait_for_size("gradients", 1)
            killed.session.close()
        with fleet.worker(0) as successor, fleet.worker(1) as other:
            repeat = successor.push(1, 0)
            fleet.wait_for_size("gradients", 2)
            last = other.push(3, 0)
            fleet.advance()
            repeat.result(STEP_SECS)
            last.result(STEP_SECS)
        assert fleet.weights() == [-2, -2]
        assert fleet.shards[0].counters().used[:2].tolist() == [1, 1]


def test_a_late_gradient_is_dropped_and_its_worker_is_not_held_up() -> None:
    with graph_fleet(fleet={"workers": 1, "spares": 1}) as fleet:
        with fleet.worker(0) as fast, fleet.worker(1) as slow:
            step = fast.push(1, 0)
            fleet.advance()
            step.result(STEP_SECS)
            late = slow.push(100, 0)
            assert late.result(STEP_SECS)[1].tolist() == [[1, 100]]
            step = fast.push(1, 1)
            fleet.advance()
            step.result(STEP_SECS)
        counters = fleet.shards[0].counters()
        assert counters.used[:2].tolist() == [2, 0]
        assert counters.staleness[1, :2].tolist() == [0, 1]


def test_a_worker_that_dies_between_the_pushes_to_two_ps_costs_nothing() -> None:
    """ps 0 makes the step and ps 1 waits: the successor repeats the gradient on the parameters of before that step."""
    with graph_fleet(num_ps=2, fleet={"workers": 2}) as fleet, fleet.worker(1) as other:
        with fleet.worker(0) as dying:
            steps = [dying.push(1, 0), other.push(3, 0)]
            fleet.advance()
            assert [step.result(STEP_SECS)[1].tolist() for step in steps] == [[[1, 100], [1, 100]]] * 2
            last = other.push(5, 1)
            fleet.wait_for_size("gradients", 1)
            fleet.die_between_pushes(dying, 2, 1)
        fleet.advance(0)
        with fleet.worker(0) as successor:
            assert successor.start.shards.tolist() == [[2, 100], [1, 100]]
            assert successor.start.global_step == 1
            repeat = successor.push(2, 1)
            fleet.advance(1)
            for step in (repeat, last):
                assert step.result(STEP_SECS)[1].tolist() == [[2, 100], [2, 100]]
        first, second = -2.0, -2.0
        assert fleet.weights() == pytest.approx([first - 3.5 * (1 + second / 8), second - 3.5 * (1 + first / 8)], 1e-6)
        for shard in fleet.shards:
            assert shard.counters().used[:2].tolist() == [2, 2]


def test_a_stop_that_one_ps_has_refused_does_not_hold_the_step_up() -> None:
    """ps 0 has accepted a stop at step 1, for which ps 1 was too late: the chief plans another one."""
    with graph_fleet(num_ps=2, fleet={"workers": 1}) as fleet, fleet.worker(0) as worker:
        fleet.shards[0].set_final_step(1)
        for local_step, final_steps in enumerate([[1, 100], [1, 100]]):
            step = worker.push(1, local_step)
            fleet.advance()
            reached = local_step + 1
            assert step.result(STEP_SECS)[1].tolist() == [[reached, final] for final in final_steps]


def test_the_step_in_progress_can_be_the_last_one_but_not_one_that_has_ended() -> None:
    """With slow steps, a stop that took one more would take that much longer."""
    with graph_fleet(fleet={"workers": 2}) as fleet, fleet.worker(0) as first, fleet.worker(1) as second:
        [shard] = fleet.shards
        steps = [first.push(1, 0), second.push(3, 0)]
        fleet.advance()
        assert [step.result(STEP_SECS)[1].tolist() for step in steps] == [[[1, 100]]] * 2
        assert not shard.set_final_step(1), "workers have read that the training goes on"
        steps = [first.push(1, 1), second.push(3, 1)]
        fleet.advance()
        assert [step.result(STEP_SECS)[1].tolist() for step in steps] == [[[2, 100]]] * 2, "a refused stop counts"
        waiting = fleet.threads.submit(shard.updates.advance, hold=False)
        steps = [first.push(1, 2)]
        fleet.wait_for_size("waiting", 1)
        assert shard.set_final_step(3)
        steps.append(second.push(3, 2))
        assert waiting.result(STEP_SECS) == 3
        assert [step.result(STEP_SECS)[1].tolist() for step in steps] == [[[3, 3]]] * 2
