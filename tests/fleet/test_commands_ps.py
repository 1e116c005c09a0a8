"""A ps on its own, driven over its control plane: what each call does, and how the process ends."""

from __future__ import annotations

import signal
from contextlib import ExitStack
from pathlib import Path

import pytest
from grpc_health.v1 import health_pb2
from support.control_calls import beat, join
from support.service_process import END_SECS, Service, running

from psfleet.control import control_pb2 as pb
from psfleet.control.client import PsClient
from psfleet.errors import BadJobError


def test_a_run_that_nobody_configured_is_empty(client: PsClient) -> None:
    state = client.describe()
    assert (state.phase, state.generation, state.step, list(state.workers)) == (pb.EMPTY, 0, 0, [])


def test_workers_that_ask_for_any_index_get_the_lowest_free_one_but_never_the_chiefs(client: PsClient) -> None:
    assert [join(client, process) for process in "abc"] == [(1, 1), (2, 1), (3, 1)]


def test_a_worker_that_comes_back_from_its_address_at_once_has_its_index_back(client: PsClient) -> None:
    assert [join(client, process, address=f"{process}:2222") for process in "ab"] == [(1, 1), (2, 1)]
    assert join(client, "a again", address="a:2222") == (1, 2)
    assert [worker.address for worker in client.describe().workers] == ["a:2222", "b:2222"]


def test_a_join_that_is_repeated_gives_the_same_index_and_counts_once(client: PsClient) -> None:
    assert join(client, "a") == (1, 1)
    assert join(client, "b") == (2, 1)
    assert join(client, "a") == (1, 1)
    assert join(client, "a", index=1) == (1, 1)


def test_a_worker_beyond_the_slots_is_refused(client: PsClient) -> None:
    join(client, "a", worker_limit=2)
    with pytest.raises(BadJobError, match=r"index -1 requested, all 2 of fleet\.max_workers are taken"):
        join(client, "c", worker_limit=2)
    with pytest.raises(BadJobError, match=r"index 2 requested"):
        join(client, "c", worker_limit=2, index=2)
    assert [worker.index for worker in client.describe().workers] == [1]


def test_the_index_of_a_worker_that_left_is_given_again(client: PsClient) -> None:
    for process in "abc":
        join(client, process)
    join(client, "a")
    beat(client, step=4, pushed=4, leaving=True)
    assert not client.describe().workers[0].is_alive
    assert join(client, "d") == (1, 2)
    with pytest.raises(BadJobError, match="are taken"):
        join(client, "e")


def test_a_worker_that_was_started_again_has_its_index_back_and_its_cause_is_told(client: PsClient) -> None:
    join(client, "a", index=1)
    assert join(client, "b", index=1, cause="killed by SIGKILL") == (1, 2)
    [worker] = client.describe().workers
    assert (worker.index, worker.joins, worker.cause) == (1, 2, "killed by SIGKILL")


def test_a_sign_of_life_is_what_others_are_told(client: PsClient) -> None:
    join(client, "a", index=0)
    state = beat(client, step=12, pushed=13, generation=1)
    [worker] = state.workers
    assert (worker.step, worker.pushed) == (12, 13)
    assert worker.is_alive
    assert client.describe().workers[0].pushed == 13


def test_the_first_word_about_the_end_of_a_run_stays_and_every_worker_hears_it(client: PsClient) -> None:
    join(client, "a", index=0)
    client.finish(pb.Outcome(exit_code=70, message="the loss is NaN", details="a traceback"))
    client.finish(pb.Outcome(exit_code=0, message="done"))
    state = beat(client, step=1, pushed=1)
    assert state.phase == pb.FINISHED
    assert (state.outcome.exit_code, state.outcome.message) == (70, "the loss is NaN")
    assert state.outcome.details == "a traceback"


def test_the_end_of_a_run_does_not_end_a_shared_ps(shared: Service, client: PsClient) -> None:
    client.finish(pb.Outcome(exit_code=75, message="lost peers"))
    with shared.client("another") as another:
        assert another.describe().phase == pb.EMPTY
    assert shared.process.poll() is None


def test_resetting_a_run_forgets_its_workers_and_its_end(client: PsClient) -> None:
    join(client, "a")
    client.finish(pb.Outcome(exit_code=70, message="failed"))
    assert client.reset() is False, "no shard was there"
    state = client.describe()
    assert (state.phase, list(state.workers)) == (pb.EMPTY, [])


def test_health_is_served_beside_the_control_plane(shared: Service) -> None:
    assert shared.health() == health_pb2.HealthCheckResponse.SERVING


def test_a_ps_of_one_run_ends_with_the_exit_code_of_that_run(tmp_path: Path) -> None:
    """0, and one that no process has by chance."""
    with ExitStack() as stack:
        services = {
            code: stack.enter_context(running("ps", tmp_path, RUN=f"run-{code}", INDEX="0")) for code in (0, 70)
        }
        for code, service in services.items():
            with service.serving().client(f"run-{code}") as client:
                client.finish(pb.Outcome(exit_code=code, message=f"ends with {code}"))
        for code, service in services.items():
            assert service.exit_code(END_SECS) == code, service.output.read_text()
            assert f"the run is over: ends with {code}" in [entry["message"] for entry in service.entries()]
            assert service.failures() == []


def test_a_ps_stays_until_its_worker_has_heard_of_the_end_and_ends_at_once_on_sigterm(tmp_path: Path) -> None:
    with ExitStack() as stack:
        polite, stopped = (stack.enter_context(running("ps", tmp_path, RUN="run", INDEX="0")) for _ in range(2))
        with polite.serving().client("run") as client:
            join(client, "a", index=0)
            client.finish(pb.Outcome(exit_code=0, message="done"))
            assert client.describe().phase == pb.FINISHED, "the worker has not received the outcome yet"
            beat(client, step=1, pushed=1)
        assert polite.exit_code(END_SECS) == 0
        stopped.serving().process.send_signal(signal.SIGTERM)
        assert stopped.exit_code(END_SECS) == 128 + signal.SIGTERM
        assert [(entry["message"], entry["level"]) for entry in stopped.failures()] == [("stopped by SIGTERM", "info")]


def test_every_line_of_a_service_says_who_speaks(shared: Service) -> None:
    ready = shared.entries()[0]
    assert ready["message"] == f"ps is ready at {shared.address.data}"
    assert (ready["role"], ready["level"], ready["run"]) == ("ps", "info", "")
