"""Threads for each process of a local run, and where the job leaves them open."""

from __future__ import annotations

import pytest
from support.chief_samples import sample_job

from psfleet.errors import BadJobError
from psfleet.service import settings
from psfleet.service.cpu import threads_each, threads_of


@pytest.mark.parametrize(
    ("num_cores", "num_processes", "num_threads"), [(2, 4, 1), (16, 4, 4), (15, 4, 3), (2.5, 1, 2), (0.5, 1, 1)]
)
def test_processes_share_the_cores_and_each_gets_one_thread_at_least(
    num_cores: float, num_processes: int, num_threads: int
) -> None:
    assert threads_each(num_cores, num_processes) == num_threads


@pytest.mark.parametrize(
    ("mode", "ps", "workers", "expected"),
    [
        ("sync", 1, 2, 8),
        ("sync", 2, 2, 4),
        ("averaging", 1, 8, 8),
        ("sync", 8, 2, 4),
        ("async", 1, 2, 4),
        ("ssp", 1, 8, 1),
    ],
)
def test_a_ps_has_the_cores_to_itself_where_workers_wait_for_it(
    mode: str, ps: int, workers: int, expected: int
) -> None:
    update = {"mode": mode, **({"bound": 1} if mode == "ssp" else {"local_steps": 2} if mode == "averaging" else {})}
    job = sample_job(update=update, fleet={"ps": ps, "workers": workers})
    assert threads_of("ps", job, 8.0) == expected
    assert threads_of("worker", job, 8.0) == threads_of("loader", job, 8.0) == 8 // workers


@pytest.mark.parametrize(("environ", "expected"), [({}, 0), ({settings.THREADS: ""}, 0), ({settings.THREADS: "3"}, 3)])
def test_a_launcher_can_give_a_process_its_number_of_threads(environ: dict[str, str], expected: int) -> None:
    assert settings.num_threads(environ) == expected


def test_a_number_of_threads_that_is_none_is_refused() -> None:
    with pytest.raises(BadJobError, match="PSFLEET_THREADS is 'many', expected a whole number"):
        settings.num_threads({settings.THREADS: "many"})
