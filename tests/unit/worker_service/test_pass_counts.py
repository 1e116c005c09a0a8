"""What a worker reports of the passes of loaders."""

from __future__ import annotations

from support.clock import Clock

from worker_service.pass_counts import REPORTED_PASSES, REPORTED_SECS, PassCounts, PassKey


def end_passes(counts: PassCounts, numbers: range) -> None:
    for number in numbers:
        key = PassKey(0, "p", number)
        counts.begin(key, 8)
        counts.add([(key, 8)])
        counts.end(key)


def reported(counts: PassCounts) -> list[int]:
    return [each.number for each in counts.newest()]


def test_each_pass_is_reported_for_some_seconds_however_many_end_in_them() -> None:
    """The chief, which looks each second, would not know of the others."""
    clock = Clock()
    counts = PassCounts(clock=clock)
    end_passes(counts, range(500))
    clock.now += REPORTED_SECS
    end_passes(counts, range(500, 501))
    assert reported(counts) == [*range(501)]
    clock.now += 1.0
    end_passes(counts, range(501, 502))
    assert reported(counts) == [*range(502 - REPORTED_PASSES, 502)]


def test_a_pass_that_a_loader_continues_is_kept_until_it_ends_again() -> None:
    """As after the loader was frozen."""
    clock = Clock()
    counts = PassCounts(clock=clock)
    end_passes(counts, range(1))
    counts.begin(PassKey(0, "p", 0), 8)
    clock.now += 2 * REPORTED_SECS
    end_passes(counts, range(1, 2 * REPORTED_PASSES))
    assert counts.open() == [PassKey(0, "p", 0)]
    assert reported(counts)[0] == 0
