"""Samples that a thread takes during a block."""

from __future__ import annotations

import threading

import pytest

from benchmarks.sampling import sampling
from psfleet.polling import wait_until


def test_samples_are_taken_until_the_block_ends_also_with_an_error() -> None:
    threads: list[threading.Thread] = []

    def sample() -> None:
        threads.append(threading.current_thread())

    def end_after_three() -> None:
        with sampling(sample, 0.001):
            wait_until(lambda: len(threads), 10.0, "three samples", done=lambda number: number >= 3)
            raise KeyError

    with pytest.raises(KeyError):
        end_after_three()
    assert threading.current_thread() not in threads
    assert not threads[0].is_alive()
