"""The members of a fleet, by its Jobs and their pods."""

from __future__ import annotations

from typing import Any

import pytest
from support.pod_samples import ended, job, kept, pod, read

from psfleet.job.job import parse_job
from psfleet.launch.platform import Member, gone_for_good
from psfleet.platforms.kubernetes.jobs import failed_indexes, verdict
from psfleet.platforms.kubernetes.members import members_of
from psfleet.platforms.kubernetes.pods import Pod

JOB = {
    "name": "small",
    "program": "program:build",
    "fleet": {"ps": 2, "workers": 2, "spares": 1},
    "optimizer": {"name": "sgd", "learning_rate": 0.1},
    "train": {"steps": 10, "batch_size": 4},
}


def worker_1(job: Any, *pods: Pod) -> Member:
    """The first member of the Job of two workers, whose pods are those of its index 0."""
    first, second = members_of([job], pods)
    assert [(each.role, each.index) for each in (first, second)] == [("worker", 1), ("worker", 2)]
    return first


def running() -> Pod:
    return pod({"running": {"startedAt": "2026-01-01T00:01:00Z"}})


def test_a_pod_that_runs_is_a_member_with_the_start_of_its_process() -> None:
    found = worker_1(job(), running())
    assert (found.name, found.state, found.health) == ("small-worker-0-x", "running", "starting")
    assert (found.exit_code, found.is_over) == (None, False)
    assert found.started == found.created + 60


def test_the_newest_pod_of_an_index_is_its_member_and_an_older_one_is_remembered_for_its_memory() -> None:
    found = worker_1(job(), ended(137, "OOMKilled"), running())
    assert (found.state, found.note) == ("running", "OOMKilled: out of memory, the limit is 2Gi")


def test_a_failed_pod_whose_index_is_restarted_is_not_over() -> None:
    found = worker_1(job(), ended(75))
    assert (found.exit_code, found.is_over, found.cause) == (75, False, "exit code 75")


@pytest.mark.parametrize(("code", "failed"), [(70, None), (75, "0"), (75, "0-1"), (0, None)])
def test_a_pod_is_over_after_a_permanent_failure_its_last_restart_or_success(code: int, failed: str | None) -> None:
    assert worker_1(job(failed=failed), ended(code)).is_over


def test_an_index_without_a_pod_waits_until_its_job_ends() -> None:
    assert worker_1(job()).state == "waiting"
    removed = worker_1(job(verdict="Complete"))
    assert (removed.state, removed.exit_code, removed.is_over) == ("removed", 0, True)


def test_the_verdict_of_a_failed_job_is_the_cause_of_members_that_have_none() -> None:
    found = worker_1(job(verdict="Failed"), ended(143))
    assert found.has_failed
    assert found.cause == "Job failed: MaxFailedIndexesExceeded: too many"
    assert worker_1(job(verdict="Failed"), ended(70)).cause == "exit code 70"


def chief(*pods: Pod, **of_job: Any) -> Member:
    """The member of the chief's Job."""
    (found,) = members_of([job("chief", **of_job)], pods)
    assert (found.role, found.index) == ("chief", 0)
    return found


@pytest.mark.parametrize("code", [0, 70, 78])
def test_a_chief_that_will_not_be_replaced_is_over_also_if_another_container_keeps_its_pod(code: int) -> None:
    found = chief(kept(code, "chief"))
    assert (found.is_over, found.exit_code, found.problem) == (True, code, "")


@pytest.mark.parametrize(("role", "index"), [("chief", 0), ("worker", 1)])
def test_a_failed_process_whose_pod_another_container_keeps_is_said_to_wait_for_that(role: str, index: int) -> None:
    found = members_of([job(role)], [kept(75, role)])[0]
    assert (found.role, found.index, found.exit_code, found.is_over) == (role, index, 75, False)
    assert found.problem == "container mesh, which the cluster has added, still runs: the Job cannot replace the pod"


def test_the_chief_is_over_only_with_its_job() -> None:
    done = ended(0, "Completed", component="chief")
    assert [chief(done, verdict=verdict).is_over for verdict in ("", "Complete")] == [False, True]


def test_a_chief_whose_restarts_are_used_up_is_over_though_its_job_is_not() -> None:
    assert [chief(failed=text).is_over for text in (None, "0")] == [False, True]


def test_a_fleet_is_its_ps_its_chief_and_the_workers_after_it() -> None:
    found = members_of([job("worker"), job("chief"), job("ps"), job("other")], [])
    expected = [("ps", 0), ("ps", 1), ("chief", 0), ("worker", 1), ("worker", 2)]
    assert [(member.role, member.index) for member in found] == expected
    assert [member.role for member in members_of([job("worker", parallelism=0), job("chief")], [])] == ["chief"]


def test_a_worker_is_gone_once_its_index_has_failed_and_its_job_need_not_have_ended() -> None:
    """The Job of the workers does not know how many the fleet needs."""
    small = parse_job(JOB)
    failed = [job("ps"), job("chief"), job("worker", failed="0")]
    assert gone_for_good(members_of(failed, [ended(75)]), small) is None, "the chief and a worker are left"
    both = [ended(75), ended(137, index=1)]
    gone = gone_for_good(members_of([*failed[:2], job("worker", failed="0-1")], both), small)
    assert (gone.role, gone.index) == ("worker", 1) if gone else False


def test_a_worker_that_failed_is_not_missed_once_the_run_is_done() -> None:
    jobs = [job("chief", verdict="Complete"), job("worker", failed="0-1")]
    assert not [member for member in members_of(jobs, [ended(75)]) if member.has_failed]
    assert not worker_1(job(verdict="Complete"), ended(75)).has_failed, "another one has received the end of the run"
    assert members_of([job("chief", verdict="Failed"), jobs[1]], [ended(75)])[1].has_failed


def test_a_suspended_job_is_a_problem_that_needs_no_end() -> None:
    found = worker_1(job(suspend=True))
    assert (found.state, found.needs_user) == ("suspended", False)
    assert "suspended" in found.problem


def test_a_pod_whose_image_cannot_be_pulled_needs_a_user() -> None:
    assert worker_1(job(), pod({"waiting": {"reason": "ErrImagePull", "message": "no"}}, "Pending")).needs_user


def test_an_evicted_pod_has_failed() -> None:
    found = worker_1(job(), pod(phase="Failed", reason="Evicted", message="The node was low on disk"))
    assert (found.has_failed, found.cause) == (True, "The node was low on disk")


@pytest.mark.parametrize(("text", "indexes"), [(None, set()), ("1", {1}), ("1,3-5,7", {1, 3, 4, 5, 7})])
def test_failed_indexes_are_read_as_the_api_writes_them(text: str | None, indexes: set[int]) -> None:
    assert failed_indexes(job(failed=text)) == indexes


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ([], None),
        ([("FailureTarget", "True")], None),
        ([("Failed", "False")], None),
        ([("SuccessCriteriaMet", "True"), ("Complete", "True")], "Complete"),
        ([("FailureTarget", "True"), ("Failed", "True")], "Failed"),
    ],
)
def test_a_job_is_over_when_all_its_pods_are(conditions: list[tuple[str, str]], expected: str | None) -> None:
    content = {"status": {"conditions": [{"type": name, "status": status} for name, status in conditions]}}
    found = verdict(read(content, "V1Job"))
    assert (found.type if found is not None else None) == expected
