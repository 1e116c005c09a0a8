"""`psfleet serve --on kubernetes`: the node of the front is lost."""

from __future__ import annotations

import pytest
from support.asking import FIRST, runs
from support.images import docker
from support.kind_fleet import RECOVERY_SECS, START_SECS, Space
from support.kind_service import KindService

from psfleet.polling import wait_until

pytestmark = [pytest.mark.extended, pytest.mark.timeout(START_SECS * 2 + RECOVERY_SECS * 3)]


def apart(service: KindService) -> tuple[str, str]:
    """The nodes of the front and of the member, whose claim is a folder of its node; they are different ones."""
    front, home = service.ready("front"), service.ready("member")["spec"]["nodeName"]
    if front["spec"]["nodeName"] == home:
        service.space.kubectl("cordon", home)
        service.space.kubectl("delete", "pod", front["metadata"]["name"])
        front = service.ready("front")
        service.space.kubectl("uncordon", home)
    return front["spec"]["nodeName"], home


def test_a_front_on_a_lost_node_is_replaced_on_another_one(space: Space) -> None:
    service = KindService(space, (space.folder / runs(space.folder)[0],), "local")
    service.serve("--name", "local", "--timeout-secs", "10")
    away, home = apart(service)
    docker("stop", "--time=1", away)
    try:
        wait_until(
            lambda: service.pod("front")["spec"].get("nodeName"), RECOVERY_SECS, f"a front on {home}",
            done=home.__eq__, poll_secs=1,
        )  # fmt: skip
        with service.connected():
            assert service.asked()[1]["outputs"][0]["data"] == pytest.approx(FIRST.ravel().tolist())
    finally:
        docker("start", away)
        space.kubectl("wait", "node", away, "--for=condition=Ready", "--timeout=180s", secs=RECOVERY_SECS)
    space.psfleet("down", service.name, secs=START_SECS)
