"""What `up` and `status` say of pods that are not created or do not start, and the deadline of that."""

from __future__ import annotations

from typing import Any

import pytest
from support.kind_fleet import COMMAND_SECS, START_SECS, Space

from psfleet.errors import LOST_PEERS, USAGE
from psfleet.polling import wait_until

START = 30
SAID_SECS = 20.0
"""How long the reason may take to be printed; the API writes an event within a second or two."""

pytestmark = pytest.mark.timeout(START_SECS * 2)

QUOTA = """
apiVersion: v1
kind: ResourceQuota
metadata: {name: none}
spec: {hard: {pods: "0"}}
"""


def started(space: Space, name: str, **sections: Any) -> tuple[str, Any]:
    """Starts a fleet that waits for `START` seconds; its job file and the command."""
    job = space.job_file(name, deadlines={"start_secs": START}, **sections)
    return job, space.start("up", job)


def wait_for_line(space: Space, up: Any, text: str) -> None:
    wait_until(
        lambda: space.printed(up),
        SAID_SECS,
        f"`up` to print {text!r}",
        done=lambda printed: text in printed,
        poll_secs=0.5,
    )


def test_a_quota_without_pods_is_said_at_once_and_ends_up_with_75(space: Space) -> None:
    space.apply("quota", QUOTA)
    _, up = started(space, "none")
    wait_for_line(space, up, "exceeded quota: none")
    assert "exceeded quota: none" in space.psfleet("status", "none")
    assert up.wait(START + COMMAND_SECS) == LOST_PEERS
    assert f"gave up after {START} s waiting for every pod to start" in space.printed(up)


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"secret_files": ["missing:/keys"]}, 'secret "missing" not found'),
        ({"secret_env": {"KEY": "missing:key"}}, 'secret "missing" not found'),
        ({"node_selector": {"moon": "yes"}}, "Unschedulable"),
        ({"priority_class": "missing"}, "no PriorityClass with name missing was found"),
    ],
    ids=["file", "variable", "node", "priority"],
)
def test_what_pods_wait_for_is_said_at_once(space: Space, section: dict[str, Any], said: str) -> None:
    _, up = started(space, "waits", kubernetes=section)
    wait_for_line(space, up, said)
    assert said in space.psfleet("status", "waits")
    space.psfleet("down", "waits", "--results", secs=180)


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"mounts": ["missing:/data"]}, 'persistentvolumeclaim "missing" not found'),
        ({"storage_class": "missing"}, "PersistentVolumeClaim waits is not bound: "),
    ],
    ids=["data", "results"],
)
def test_a_volume_that_is_not_there_is_said_at_once(space: Space, section: dict[str, Any], said: str) -> None:
    _, up = started(space, "waits", container=section)
    wait_for_line(space, up, said)
    assert said in space.psfleet("status", "waits")
    assert up.wait(START + COMMAND_SECS) == LOST_PEERS, space.printed(up)
    space.psfleet("down", "waits", "--results", secs=180)


def test_an_object_of_another_owner_is_refused_and_stays(space: Space) -> None:
    space.kubectl("create", "configmap", "taken", "--from-literal=a=b")
    job = space.job_file("taken")
    assert "ConfigMap taken in namespace" in space.psfleet("up", job, code=USAGE)
    assert space.get("configmap", "taken")["data"] == {"a": "b"}
    assert not space.get("jobs")["items"], "nothing was started"


def test_two_jobs_of_which_one_is_named_like_an_object_of_the_other_train_side_by_side(space: Space) -> None:
    sections: dict[str, Any] = {"fleet": {"ps": 1, "workers": 1}, "train": {"steps": 3, "batch_size": 1}}
    processes = [space.start("up", space.job_file(name, **sections)) for name in ("one", "one-program")]
    assert [each.wait(START_SECS) for each in processes] == [0, 0], [space.printed(each) for each in processes]
