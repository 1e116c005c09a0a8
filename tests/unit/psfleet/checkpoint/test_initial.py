"""The initial checkpoint holds the initial values of the model, and is written atomically."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.checkpoint_samples import (
    random_values,
    sample_layout,
)

from psfleet.checkpoint.manifest import Checkpoint
from psfleet.checkpoint.store import newest, write_initial
from psfleet.checkpoint.tensors import read_shard, read_tensors


def test_the_initial_checkpoint_holds_the_named_tensors_and_no_slots(tmp_path: Path) -> None:
    values = random_values(5)
    written = write_initial(
        tmp_path / "new", sample_layout(3), values, run="run", generation=4, optimizer="adam", extra={"a": 1}
    )
    assert written == newest(tmp_path / "new")
    assert (written.step, written.generation, written.slots) == (0, 4, ())
    assert read_shard(written, sample_layout(2), 1).slots == {}
    for name, tensor in read_tensors(written).items():
        assert tensor.tobytes() == values[name].tobytes()


def test_a_crash_within_the_initial_checkpoint_leaves_none_and_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(num_ps: int, generation: int) -> Checkpoint:
        values, layout = random_values(5), sample_layout(num_ps)
        return write_initial(tmp_path, layout, values, run="r", generation=generation, optimizer="sgd", extra={})

    def crash(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("psfleet.checkpoint.whole.write_manifest", crash)
        with pytest.raises(KeyboardInterrupt):
            write(num_ps=2, generation=1)
    assert newest(tmp_path) is None
    written = write(num_ps=1, generation=2)
    assert written == newest(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["00000000-g2"]
    assert sorted(path.name for path in written.folder.iterdir()) == ["manifest.json", "ps-0-of-1.safetensors"]


def test_the_initial_checkpoint_names_a_missing_tensor(tmp_path: Path) -> None:
    values = random_values(5)
    del values["dense/bias"]
    with pytest.raises(KeyError, match="dense/bias"):
        write_initial(tmp_path, sample_layout(1), values, run="r", generation=1, optimizer="sgd", extra={})
