"""What cannot succeed ends at once: no retries, and the cause where people look."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from support.kind_fleet import START_SECS, Object, Space

from psfleet.polling import wait_until

END_SECS = 60.0
"""From the failure to the end of the Job."""
UNPULLABLE_SECS = 30.0


def apply(space: Space, text: str) -> None:
    path = space.folder / "manifests.yaml"
    path.write_text(text)
    space.kubectl("apply", "-f", str(path))


def failed_at(space: Space, name: str, reason: str = "PodFailurePolicy") -> None:
    """Waits until a Job has failed for a reason, and checks that this came soon after its first failed process."""
    wait_until(lambda: space.condition(name), START_SECS, f"the end of Job {name}", poll_secs=1)
    conditions: list[Object] = space.job(name)["status"]["conditions"]
    ends = [each for each in conditions if each["type"] == "Failed"]
    assert [each["reason"] for each in ends] == [reason], conditions
    pods = space.pods(name.rpartition("-")[2])
    states = [pod["status"]["containerStatuses"][0]["state"] for pod in pods]
    first = min(state["terminated"]["finishedAt"] for state in states if "terminated" in state)
    took = datetime.fromisoformat(ends[0]["lastTransitionTime"]) - datetime.fromisoformat(first)
    assert took < timedelta(seconds=END_SECS)


def assert_nothing_was_retried(space: Space, component: str) -> None:
    notes = [pod["metadata"].get("annotations", {}) for pod in space.pods(component)]
    assert {note.get("batch.kubernetes.io/job-index-failure-count", "0") for note in notes} == {"0"}


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("option", "cause"), [("fail_at", "example 5 cannot be read"), ("nan_at", "loss is nan")], ids=["exception", "nan"]
)
def test_a_program_that_fails_ends_the_job_with_its_cause(space: Space, option: str, cause: str) -> None:
    job = space.job_file("broken", {option: 5})
    apply(space, space.rendered(job))
    for component in ("chief", "worker"):
        failed_at(space, f"broken-{component}")
        assert_nothing_was_retried(space, component)
    assert cause in space.kubectl("describe", "pods").lower()
    assert cause in space.psfleet("status", "broken").lower()
    printed = space.psfleet("up", job, code=70)
    assert cause in printed.lower(), "a launcher that attaches later must name the cause, too"


@pytest.mark.timeout(600)
def test_a_bad_job_file_ends_all_jobs_with_its_cause(space: Space) -> None:
    job = space.job_file("wrong")
    text = space.rendered(job)
    apply(space, text.replace('"batch_size":1', '"batch_size":"many"'))
    # A worker that is refused ends only itself; this is the only one besides the chief.
    for component, reason in (("ps", "PodFailurePolicy"), ("chief", "PodFailurePolicy"), ("worker", "FailedIndexes")):
        failed_at(space, f"wrong-{component}", reason)
        assert_nothing_was_retried(space, component)
    assert "train.batch_size is 'many'" in space.kubectl("describe", "pods")
    assert "train.batch_size is 'many'" in space.psfleet("status", "wrong")


@pytest.mark.timeout(300)
def test_an_image_that_cannot_be_pulled_is_said_soon(space: Space) -> None:
    job = space.job_file("lost", container={"ps_image": "registry.invalid/none:1"})
    up = space.start("up", job)
    wait_until(
        lambda: "registry.invalid/none:1" in space.printed(up), UNPULLABLE_SECS + 15, "the cause in up", poll_secs=0.5
    )
    assert "pod lost-ps-0-" in space.printed(up)

    def status() -> str:
        return space.psfleet("status", "lost")

    table = wait_until(
        status, UNPULLABLE_SECS, "the cause in status", done=lambda text: "ImagePull" in text, poll_secs=1
    )
    assert "registry.invalid/none:1" in table
