"""Several commands that start and end one fleet at the same time, and one that is killed between two requests."""

from __future__ import annotations

import copy
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.standing_api import StandingApi

from psfleet.errors import LostPeerError, UsageError
from psfleet.job.fleet_access import FleetAccess
from psfleet.job.fleet_file import FleetFile
from psfleet.platforms.kubernetes import fleet_start
from psfleet.platforms.kubernetes.api import _Transport
from psfleet.platforms.kubernetes.standing import KubernetesFleets
from psfleet.service import settings

RECORD = ("configmaps", "lab")


def file(**sections: Any) -> FleetFile:
    size = {"fleet": {"ps": 2, "workers": 1}, "deadlines": {"start_secs": 20}}
    return FleetFile.model_validate({"name": "lab", **size, **sections})


def ids(api: StandingApi) -> set[str]:
    """The ids of the fleet's start that its record and the environment of its processes have."""
    specs = [each["spec"]["template"]["spec"] for (kind, _), each in api.objects.items() if kind == "statefulsets"]
    texts = [each["value"] for spec in specs for each in spec["containers"][0]["env"] if each["name"] == settings.FLEET]
    return {json.loads(text)["id"] for text in (api.objects[RECORD]["data"]["access.json"], *texts)}


def at_the_same_time(monkeypatch: pytest.MonkeyPatch, *files: FleetFile) -> list[FleetAccess | Exception]:
    """What `up` returns or raises for each file, if none has found a record."""
    barrier = threading.Barrier(len(files), timeout=20)
    named = fleet_start.named_secrets

    def waiting(each: FleetFile) -> list[dict[str, Any]]:
        # Of each thread once, before it creates the record.
        if threading.current_thread() not in waited:
            waited.append(threading.current_thread())
            barrier.wait()
        return named(each)

    waited: list[threading.Thread] = []
    monkeypatch.setattr(fleet_start, "named_secrets", waiting)

    def up(each: FleetFile) -> FleetAccess | Exception:
        try:
            return KubernetesFleets().up(each)
        except Exception as error:
            return error

    with ThreadPoolExecutor(len(files)) as pool:
        return list(pool.map(up, files))


def test_two_commands_that_start_one_fleet_start_it_once(
    standing_api: StandingApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = at_the_same_time(monkeypatch, file(), file())
    assert isinstance(first, FleetAccess), first
    assert first == second
    assert ids(standing_api) == {first.id}
    assert standing_api.requests.count(("PATCH", "statefulsets/lab-ps")) == 1, "the other command only waits"


def test_of_two_commands_with_different_files_one_is_refused_in_one_line(
    standing_api: StandingApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = at_the_same_time(monkeypatch, file(), file(fleet={"ps": 1}))
    (access,) = [each for each in results if isinstance(each, FleetAccess)]
    (refusal,) = [each for each in results if isinstance(each, UsageError)]
    assert str(refusal).startswith("fleet lab is up with other settings, expected the same, or `psfleet fleet down lab")
    assert ids(standing_api) == {access.id}
    assert KubernetesFleets().access("lab") == access


class Killed(BaseException):
    """The end of a command that is killed."""


def killed_after(num_changes: int, made: FleetFile) -> None:
    """Starts a fleet with a command that is killed after so many requests that change something."""
    request, left = _Transport.request, [num_changes]

    def counted(self: _Transport, method: str, *words: Any, **options: Any) -> Any:
        left[0] -= method != "GET"
        if left[0] < 0:
            raise Killed
        return request(self, method, *words, **options)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(_Transport, "request", counted)
        with pytest.raises(Killed):
            KubernetesFleets().up(made)


@pytest.mark.parametrize("num_changes", [1, 2, 5, 9, 12, 15, 16, 17])
def test_a_command_that_was_killed_anywhere_is_completed_by_the_next_one(
    standing_api: StandingApi, monkeypatch: pytest.MonkeyPatch, num_changes: int
) -> None:
    monkeypatch.setattr(fleet_start, "APPLY_SECS", 0.0)
    whole = KubernetesFleets().up(file(tls=True)).id
    wanted = {key: each["metadata"].get("ownerReferences") for key, each in standing_api.objects.items()}
    KubernetesFleets().down("lab")
    killed_after(num_changes, file(tls=True))
    started = json.loads(standing_api.objects[RECORD]["data"]["access.json"])["id"]
    access = KubernetesFleets().up(file(tls=True))
    assert ids(standing_api) == {access.id} == {started} != {whole}
    found = {key: each["metadata"].get("ownerReferences") for key, each in standing_api.objects.items()}
    assert found == wanted, "every object is there, and each has its owner"
    KubernetesFleets().down("lab")
    assert standing_api.objects == {}


def test_secrets_of_the_authority_of_another_machine_are_not_mixed_with_new_ones(
    standing_api: StandingApi, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(fleet_start, "APPLY_SECS", 0.0)
    killed_after(2, file(tls=True))
    assert [name for kind, name in standing_api.objects if kind == "secrets"] == ["lab-ps-tls"]
    before = copy.deepcopy(standing_api.objects)
    monkeypatch.setenv("HOME", str(tmp_path / "other"))
    with pytest.raises(UsageError, match="lab is not complete, and Secret lab-ps-tls has the authority of another mac"):
        KubernetesFleets().up(file(tls=True))
    assert standing_api.objects == before


def test_a_fleet_that_another_command_ends_and_starts_is_left_to_that_one(
    standing_api: StandingApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    KubernetesFleets().up(file())
    theirs = standing_api.objects[RECORD]
    KubernetesFleets().down("lab")
    standing_api.server = {}
    looked = threading.Event()
    not_serving = fleet_start.not_serving

    def noted(members: Any) -> str:
        looked.set()
        return not_serving(members)

    monkeypatch.setattr(fleet_start, "LOOK_SECS", 0.01)
    monkeypatch.setattr(fleet_start, "not_serving", noted)
    with ThreadPoolExecutor(1) as pool:
        up = pool.submit(KubernetesFleets().up, file(deadlines={"start_secs": 60}))
        assert looked.wait(20)
        with standing_api.lock:
            standing_api.objects.clear()
            standing_api.objects[RECORD] = theirs
        with pytest.raises(LostPeerError, match="lab was ended by another command while this one started it"):
            up.result(20)
    assert standing_api.objects == {RECORD: theirs}
