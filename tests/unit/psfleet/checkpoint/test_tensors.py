"""Any number of ps reads a checkpoint bit for bit, and a part or a model that does not match is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from support.checkpoint_samples import (
    FROZEN,
    PARAMETERS,
    STATE,
    contents,
    random_values,
    sample_layout,
    save,
)

from psfleet.checkpoint.manifest import Checkpoint
from psfleet.checkpoint.parts import ShardContent
from psfleet.checkpoint.tensors import read_shard, read_tensors
from psfleet.errors import BadJobError, NoCheckpointError
from psfleet.layout import Layout, TensorSpec


def _assert_same(found: ShardContent, expected: ShardContent) -> None:
    assert found.parameters.dtype == np.float32
    assert found.state.dtype == found.frozen.dtype == np.uint8
    assert set(found.slots) == set(expected.slots)
    for name, vector in expected.vectors().items():
        assert found.vectors()[name].tobytes() == vector.tobytes(), name


@pytest.mark.parametrize("num_ps", [1, 2, 3])
@pytest.mark.parametrize("written_by", [1, 2, 3])
@pytest.mark.parametrize("bucket_bytes", [16, 100, 4096])
def test_any_number_of_ps_reads_bit_for_bit_what_any_number_wrote(
    tmp_path: Path, written_by: int, num_ps: int, bucket_bytes: int
) -> None:
    checkpoint = save(tmp_path, 7, layout=sample_layout(written_by, bucket_bytes=64))
    layout = sample_layout(num_ps, bucket_bytes)
    for shard, expected in enumerate(contents(layout, seed=1)):
        _assert_same(read_shard(checkpoint, layout, shard), expected)


def test_tensors_come_back_in_another_order_of_the_layout(tmp_path: Path) -> None:
    """An older psfleet wrote state in the program's order."""
    checkpoint = save(tmp_path, 7)
    layout = Layout.plan(PARAMETERS[::-1], STATE[::-1], FROZEN, 1, 4096)
    read = read_shard(checkpoint, layout, 0)
    named = layout.parameters.unpack(read.parameters) | layout.state.unpack(read.state)
    for name in ("dense/kernel", "norm/moving_mean", "seen"):
        assert named[name].tobytes() == random_values(1)[name].tobytes()


@pytest.mark.parametrize("num_ps", [1, 3])
def test_tensors_that_moved_between_state_and_frozen_are_read_from_where_they_were(tmp_path: Path, num_ps: int) -> None:
    checkpoint = save(tmp_path, 7)
    layout = Layout.plan(PARAMETERS, (STATE[2], *FROZEN), (*STATE[:2], STATE[3]), num_ps, 4096)
    read = [read_shard(checkpoint, layout, shard) for shard in range(num_ps)]
    for flat, vectors in ((layout.state, [r.state for r in read]), (layout.frozen, [r.frozen for r in read])):
        for name, value in flat.unpack(np.concatenate(vectors)).items():
            assert value.tobytes() == random_values(1)[name].tobytes(), name


def test_a_ps_gets_its_own_scalars_and_a_new_ps_those_of_the_last(tmp_path: Path) -> None:
    checkpoint = save(tmp_path, 7, layout=sample_layout(2))
    layout = sample_layout(3)
    owners = [float(read_shard(checkpoint, layout, shard).scalars["owner"]) for shard in range(3)]
    assert owners == [0.0, 1.0, 1.0]
    scalar = read_shard(checkpoint, layout, 0).scalars["beta1_power"]
    assert scalar.shape == ()
    assert scalar.dtype == np.float32


def test_read_tensors_returns_complete_tensors(tmp_path: Path) -> None:
    tensors = read_tensors(save(tmp_path, 7, layout=sample_layout(3)))
    expected = random_values(1)
    assert set(tensors) == set(expected)
    for name, value in expected.items():
        assert (tensors[name].shape, tensors[name].dtype) == (value.shape, value.dtype)
        assert tensors[name].tobytes() == value.tobytes()


def _rewrite(checkpoint: Checkpoint, change: Callable[[dict[str, np.ndarray], dict[str, str]], None]) -> None:
    """Replaces part 0 by a changed one that is still a good safetensors file."""
    path = checkpoint.folder / "ps-0-of-2.safetensors"
    tensors = safetensors.numpy.load_file(path)
    with safetensors.safe_open(path, framework="numpy") as file:
        metadata = dict(file.metadata())
    change(tensors, metadata)
    safetensors.numpy.save_file(tensors, path, metadata)


KERNEL = "parameter/dense/kernel@0"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda tensors, _: tensors.update({"parameter/alien@0": tensors[KERNEL]}), "'parameter/alien@0', F32"),
        (lambda tensors, _: tensors.update({"no-slash": tensors[KERNEL]}), "'no-slash', F32"),
        (lambda tensors, _: tensors.pop("slot/v/dense/bias@0"), "slot/v/dense/bias have a gap or overlap at 0 of 5"),
        (
            lambda tensors, _: tensors.update({KERNEL: tensors[KERNEL][:-1]}),
            "dense/kernel have a gap or overlap at 34 of 35",
        ),
        (lambda tensors, _: tensors.update({"parameter/dense/kernel@9": tensors[KERNEL]}), "overlap at 35 of 35"),
        (lambda tensors, _: tensors.update({"parameter/dense/kernel@-1": tensors[KERNEL]}), "kernel@-1', F32"),
        (lambda tensors, _: tensors.update({KERNEL: np.zeros(36, np.float32)}), "overlap at 36 of 35"),
        (lambda tensors, _: tensors.update({KERNEL: tensors[KERNEL].view(np.int32)}), "@0', I32"),
        (lambda tensors, _: tensors.update({"scalar/x": np.zeros(2, np.float32)}), "'scalar/x', F32 \\[2\\]"),
        (lambda _, metadata: metadata.update(run="other"), "run is 'other', expected 'run'"),
        (lambda _, metadata: metadata.update(shard="1"), "shard is '1', expected '0'"),
        (lambda _, metadata: metadata.clear(), "format_version is None"),
    ],
)
def test_a_part_that_does_not_match_the_manifest_is_refused(
    tmp_path: Path, change: Callable[[dict[str, np.ndarray], dict[str, str]], None], problem: str
) -> None:
    checkpoint = save(tmp_path, 10)
    _rewrite(checkpoint, change)
    with pytest.raises(NoCheckpointError, match=problem):
        read_shard(checkpoint, checkpoint.layout, 0)


@pytest.mark.parametrize("size", [0, 4, 8, 100, -1])
def test_reading_a_truncated_part_is_refused(tmp_path: Path, size: int) -> None:
    checkpoint = save(tmp_path, 10)
    path = checkpoint.folder / checkpoint.parts[0].file
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(NoCheckpointError, match=r"ps-0-of-2\.safetensors"):
        read_tensors(checkpoint)


def test_tensors_may_be_divided_anywhere(tmp_path: Path) -> None:
    def cut(tensors: dict[str, np.ndarray], _: dict[str, str]) -> None:
        kernel = tensors.pop(KERNEL)
        tensors.update({KERNEL: kernel[:3], "parameter/dense/kernel@3": kernel[3:]})

    checkpoint = save(tmp_path, 10)
    _rewrite(checkpoint, cut)
    for shard, expected in enumerate(contents(checkpoint.layout, 1)):
        _assert_same(read_shard(checkpoint, checkpoint.layout, shard), expected)


@pytest.mark.parametrize(
    ("parameters", "state", "words"),
    [
        ((TensorSpec("dense/kernel", (5, 7)), *PARAMETERS[1:]), STATE, ["dense/kernel", "[7, 5]", "[5, 7]"]),
        (PARAMETERS[1:], STATE, ["dense/kernel", "[7, 5]", "missing"]),
        ((*PARAMETERS, TensorSpec("new", (2,))), STATE, ["new", "missing", "[2]"]),
        (PARAMETERS, (TensorSpec("norm/moving_mean", (41,), "float64"), *STATE[1:]), ["float32 [41]", "float64 [41]"]),
    ],
)
def test_another_model_is_refused_with_tensor_shapes_and_a_way_out(
    tmp_path: Path, parameters: tuple[TensorSpec, ...], state: tuple[TensorSpec, ...], words: list[str]
) -> None:
    checkpoint = save(tmp_path, 10)
    with pytest.raises(BadJobError) as caught:
        read_shard(checkpoint, Layout.plan(parameters, state, FROZEN, 2, 4096), 0)
    assert all(word in str(caught.value) for word in [*words, "--fresh"])
