"""Which GPUs a process sees, by what CUDA reads; this machine needs none."""

from __future__ import annotations

import pytest
import tensorflow as tf

from psfleet.errors import BadJobError
from psfleet.job.gpus import VisibleGpus
from psfleet.job.sections import Device
from psfleet.tf.gpus import VISIBLE, hide_gpus, show_gpus
from psfleet.tf.server import session_config

DEVICE = Device(visible_gpus=VisibleGpus(worker=[[0], [2, 1], []]))


@pytest.fixture(autouse=True)
def three_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [f"{kind}:{index}" for index in range(3)])


def shown(index: int, environ: dict[str, str], device: Device | None = DEVICE) -> str | None:
    show_gpus(device, index, environ)
    return environ.get(VISIBLE)


@pytest.mark.parametrize(("index", "expected"), [(0, "0"), (1, "2,1"), (2, "-1"), (3, "-1")])
def test_a_worker_sees_those_of_its_index(index: int, expected: str) -> None:
    assert shown(index, {}) == expected


@pytest.mark.parametrize(("index", "expected"), [(0, "GPU-a"), (1, "GPU-c,5"), (2, "-1")])
def test_the_numbers_count_what_the_environment_shows(index: int, expected: str) -> None:
    assert shown(index, {VISIBLE: "GPU-a, 5,GPU-c"}) == expected


@pytest.mark.parametrize("device", [None, Device()])
def test_without_a_list_a_worker_keeps_its_environment(device: Device | None) -> None:
    assert shown(1, {VISIBLE: "4"}, device) == "4"
    assert shown(1, {}, device) is None


@pytest.mark.parametrize(("before", "number"), [("-1", 0), ("", 0), ("3", 1)])
def test_an_environment_with_too_few_is_refused(before: str, number: int) -> None:
    message = (
        rf"gives worker 1 the GPUs \[2, 1\], but {VISIBLE} is '{before}', which shows {number}: expected at least 3"
    )
    with pytest.raises(BadJobError, match=message):
        shown(1, {VISIBLE: before})


def test_a_machine_with_too_few_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [])
    with pytest.raises(BadJobError, match=r"gives worker 0 the GPUs \[0\], but TensorFlow finds 0 of them"):
        shown(0, {})
    assert shown(2, {}) == "-1"


def test_sessions_have_the_memory_and_the_placement_of_the_job() -> None:
    usual, own = (
        session_config(device)
        for device in (Device(), Device(gpu_memory_fraction=0.25, gpu_memory_growth=True, soft_placement=False))
    )
    assert (usual.gpu_options.per_process_gpu_memory_fraction, own.gpu_options.per_process_gpu_memory_fraction) == (
        0,
        0.25,
    )
    assert (usual.gpu_options.allow_growth, own.gpu_options.allow_growth) == (False, True)
    assert (usual.allow_soft_placement, own.allow_soft_placement) == (True, False)


def test_a_ps_sees_none_whatever_its_environment_says() -> None:
    environ = {VISIBLE: "0,1"}
    hide_gpus(environ)
    assert environ == {VISIBLE: "-1"}
