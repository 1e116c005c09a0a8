"""A fleet with an activity, for tests that render or start one."""

from __future__ import annotations

from psfleet.job.activity import Activity
from psfleet.job.job import Job
from support.scripted_platform import job

ACTIVITY = Activity(
    kind="study",
    driver="psfleet.sweep",
    worker="worker_service.trial",
    driver_variables={"PSFLEET_STUDY": '{"path": "$HOME"}'},
    worker_variables={"PSFLEET_TRIALS": "{}"},
)


def driven_job(**sections: object) -> Job:
    """The job of a fleet named `small` of a driver and two workers."""
    return job(**{"fleet": {"workers": 1, "spares": 2}, **sections})
