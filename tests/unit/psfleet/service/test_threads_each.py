"""Threads for each process of a local run, and where the job leaves them open."""

from __future__ import annotations

import pytest

from psfleet.errors import BadJobError
from psfleet.service import settings
from psfleet.service.cpu import threads_each


@pytest.mark.parametrize(
    ("num_cores", "num_processes", "num_threads"), [(2, 4, 1), (16, 4, 4), (15, 4, 3), (2.5, 1, 2), (0.5, 1, 1)]
)
def test_processes_share_the_cores_and_each_gets_one_thread_at_least(
    num_cores: float, num_processes: int, num_threads: int
) -> None:
    assert threads_each(num_cores, num_processes) == num_threads


@pytest.mark.parametrize(("environ", "expected"), [({}, 0), ({settings.THREADS: ""}, 0), ({settings.THREADS: "3"}, 3)])
def test_a_launcher_can_give_a_process_its_number_of_threads(environ: dict[str, str], expected: int) -> None:
    assert settings.num_threads(environ) == expected


def test_a_number_of_threads_that_is_none_is_refused() -> None:
    with pytest.raises(BadJobError, match="PSFLEET_THREADS is 'many', expected a whole number"):
        settings.num_threads({settings.THREADS: "many"})
