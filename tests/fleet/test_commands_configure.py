"""Configuring a ps: once, never differently; scheduled checkpoints, another generation, reset."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import pytest
from support.control_calls import LAYOUT, beat, configure, join, layout
from support.service_process import END_SECS, Service

import psfleet
from psfleet.control import control_pb2 as pb
from psfleet.control import control_pb2_grpc
from psfleet.control.client import PsClient
from psfleet.errors import BadJobError, LostPeerError
from psfleet.layout import Layout, TensorSpec
from psfleet.polling import wait_until


def test_a_configured_shard_runs_at_the_step_of_its_checkpoint(client: PsClient, tmp_path: Path) -> None:
    state = configure(client, tmp_path)
    assert (state.phase, state.generation, state.step, state.final_step) == (pb.RUNNING, 1, 0, 50)
    assert state.layout_digest == LAYOUT.digest()
    assert (state.optimizer, list(state.slots)) == ("momentum", ["velocity"])
    assert list(state.pushed) == list(state.used) == [0] * 4, "one for each of the 2 * 2 worker indices"


def test_the_same_shard_again_changes_nothing(client: PsClient, tmp_path: Path) -> None:
    configure(client, tmp_path)
    before = client.describe().waiting_secs
    assert configure(client, tmp_path).phase == pb.RUNNING
    assert client.describe().waiting_secs > before, "the shard was built again"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"layout": layout(8)}, "layout differs from that of generation 1 of run"),
        ({"job": {"train": {"steps": 51, "batch_size": 4}}}, "job differs from that of generation 1 of run"),
        ({"shard": 1}, "shard differs from that of generation 1 of run"),
        ({"checkpoints_root": "/elsewhere"}, "checkpoints_root differs from that of generation 1 of run"),
    ],
    ids=["layout", "job", "shard", "checkpoints"],
)
def test_another_shard_is_refused_and_the_first_goes_on(
    client: PsClient, tmp_path: Path, changes: dict[str, Any], expected: str
) -> None:
    before = configure(client, tmp_path)
    with pytest.raises(BadJobError) as caught:
        configure(client, tmp_path, **changes)
    assert expected in str(caught.value)
    assert client.address.control in str(caught.value)
    after = client.describe()
    assert (after.phase, after.layout_digest) == (pb.RUNNING, before.layout_digest)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"checkpoint_folder": "/no/such/checkpoint"}, "/no/such/checkpoint"),
        ({"layout": layout(8)}, "w"),
        ({"layout": Layout.plan([TensorSpec("v", (7,))], [], [], 1, 4096)}, "v"),
    ],
    ids=["no checkpoint", "another shape", "another name"],
)
def test_a_shard_that_its_checkpoint_does_not_fit_is_refused_and_nothing_stays(
    client: PsClient, tmp_path: Path, changes: dict[str, Any], expected: str
) -> None:
    with pytest.raises(BadJobError) as caught:
        configure(client, tmp_path, **changes)
    assert expected in str(caught.value)
    assert client.describe().phase == pb.EMPTY
    assert configure(client, tmp_path).phase == pb.RUNNING


def test_a_higher_generation_takes_the_place_of_the_one_before(client: PsClient, tmp_path: Path) -> None:
    configure(client, tmp_path)
    state = configure(client, tmp_path, generation=2)
    assert (state.phase, state.generation) == (pb.RUNNING, 2)
    with pytest.raises(LostPeerError, match="generation 1 requested, expected one above 2"):
        configure(client, tmp_path)


def test_a_cut_is_accepted_only_ahead_of_the_step_and_in_the_generation_that_runs(
    client: PsClient, tmp_path: Path
) -> None:
    assert not client.schedule_checkpoint(1, 10, stop=False).accepted, "nothing runs yet"
    configure(client, tmp_path)
    assert not client.schedule_checkpoint(2, 10, stop=False).accepted, "of another generation"
    assert not client.schedule_checkpoint(1, 0, stop=False).accepted, "a step that is over"
    reply = client.schedule_checkpoint(1, 10, stop=False)
    assert (reply.accepted, reply.step) == (True, 0)
    assert client.describe().final_step == 50


def test_a_pause_is_accepted_only_ahead_of_the_step_and_in_the_generation_that_runs(
    client: PsClient, tmp_path: Path
) -> None:
    assert not client.schedule_reductions(1, [10], pause_at=10).accepted, "nothing runs yet"
    configure(client, tmp_path, reductions=[4])
    assert not client.schedule_reductions(2, [10]).accepted, "of another generation"
    assert not client.schedule_reductions(1, [10], pause_at=0).accepted, "a step that is over"
    reply = client.schedule_reductions(1, [4], pause_at=10)
    assert (reply.accepted, reply.step) == (True, 0)
    assert client.schedule_reductions(1, [4, 10]).accepted


def test_a_cut_that_stops_brings_the_target_nearer(client: PsClient, tmp_path: Path) -> None:
    configure(client, tmp_path)
    assert client.schedule_checkpoint(1, 99, stop=True).accepted
    assert client.describe().final_step == 50, "the target was nearer"
    assert client.schedule_checkpoint(1, 10, stop=True).accepted
    assert client.describe().final_step == 10
    assert client.schedule_checkpoint(1, 20, stop=True).accepted
    assert client.describe().final_step == 20, "another ps has refused the stop before"


def test_resetting_one_run_leaves_the_shard_of_another(shared: Service, client: PsClient, tmp_path: Path) -> None:
    configure(client, tmp_path)
    with shared.client("neighbour") as neighbour:
        configure(neighbour, tmp_path)
        assert client.reset() is True
        assert client.describe().phase == pb.EMPTY
        assert client.reset() is False
        state = neighbour.describe()
        assert (state.phase, state.generation, state.layout_digest) == (pb.RUNNING, 1, LAYOUT.digest())
        assert configure(client, tmp_path).phase == pb.RUNNING, "the run that was reset can come again"
        assert neighbour.reset() is True


def test_a_run_that_is_over_is_dropped_once_its_worker_knows_and_leaves_the_shard_of_another(
    shared: Service, client: PsClient, tmp_path: Path
) -> None:
    configure(client, tmp_path)
    join(client, "a", index=0)
    with shared.client("neighbour") as neighbour:
        configure(neighbour, tmp_path)
        client.finish(pb.Outcome(exit_code=0, message="done"))
        assert client.describe().phase == pb.FINISHED
        beat(client, step=1, pushed=1, leaving=True)
        wait_until(lambda: client.describe().phase == pb.EMPTY, END_SECS, "the run that is over to be dropped")
        assert neighbour.describe().phase == pb.RUNNING
        assert neighbour.reset() is True


def test_another_version_of_psfleet_is_told_both_versions(
    client: PsClient, shared: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psfleet, "__version__", "9.9.9")
    with shared.client(client.describe().run) as newer, pytest.raises(BadJobError) as caught:
        newer.describe()
    monkeypatch.undo()
    assert f"caller has psfleet 9.9.9, expected {psfleet.__version__}" in str(caught.value)
    assert caught.value.exit_code == 78


@pytest.mark.parametrize(
    "method",
    ["Describe", "Configure", "Join", "Heartbeat", "ScheduleCheckpoint", "ScheduleReductions", "Finish", "Reset"],
)
def test_no_call_is_answered_to_a_caller_without_a_version_or_a_run(shared: Service, method: str) -> None:
    requests: dict[str, Any] = {
        "Describe": pb.DescribeRequest,
        "Configure": pb.ConfigureRequest,
        "Join": pb.JoinRequest,
        "Heartbeat": pb.HeartbeatRequest,
        "ScheduleCheckpoint": pb.ScheduleCheckpointRequest,
        "ScheduleReductions": pb.ScheduleReductionsRequest,
        "Finish": pb.FinishRequest,
        "Reset": pb.ResetRequest,
    }
    callers = {"of no version": pb.Caller(run="run"), "run is ''": pb.Caller(version=psfleet.__version__)}
    with grpc.insecure_channel(shared.address.control) as channel:
        call = getattr(control_pb2_grpc.ShardControlStub(channel), method)
        for expected, caller in callers.items():
            with pytest.raises(grpc.RpcError) as caught:
                call(requests[method](caller=caller), timeout=5.0)
            assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION
            assert expected in (caught.value.details() or "")
