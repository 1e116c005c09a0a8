"""Which steps of a worker may be abandoned: no two in a row, not too many, and none while steps are short."""

from __future__ import annotations

from worker_service.allowance import MAX_IN_A_BURST, NUM_STEPS, SECS_EACH, Allowance


def test_no_step_is_abandoned_before_some_in_a_row_have_been_long() -> None:
    now = 0.0
    allowance = Allowance(lambda: now, min_secs=1)
    allowed = []
    for secs in (5, *[1] * (NUM_STEPS - 1), 0.5, *[1] * NUM_STEPS):
        allowed.append(allowance.begin())
        now += secs
        allowance.end(was_abandoned=False)
    assert allowed == [*[False] * NUM_STEPS, True, *[False] * NUM_STEPS]
    assert allowance.begin()


def test_a_worker_abandons_a_burst_of_steps_and_then_one_in_some_seconds() -> None:
    now = 0.0
    allowance = Allowance(lambda: now, min_secs=0)

    def abandoned() -> int:
        """Abandons every other step until none may be."""
        count = 0
        while allowance.begin():
            allowance.end(was_abandoned=True)
            assert not allowance.begin(), "no two in a row"
            allowance.end(was_abandoned=False)
            count += 1
        return count

    assert abandoned() == MAX_IN_A_BURST
    now += 3.5 * SECS_EACH
    assert abandoned() == 3
    now += SECS_EACH
    assert abandoned() == 1
    now += 1000 * MAX_IN_A_BURST * SECS_EACH
    assert abandoned() == MAX_IN_A_BURST
