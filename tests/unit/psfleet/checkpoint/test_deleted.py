"""Commands that read the newest checkpoint of a run while the run deletes it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import safetensors.numpy
from support.exported_run import BIAS, KERNEL, trained, with_checkpoint

from psfleet.checkpoint import deleted, export
from psfleet.checkpoint.manifest import Checkpoint
from psfleet.errors import NoCheckpointError, PsfleetError


class Deleting:
    """An export before which a run deletes the chosen checkpoint, for so many times, and writes the next one."""

    def __init__(self, folder: Path, times: int) -> None:
        self.folder = folder
        self.left = times
        self.steps: list[int] = []
        self._export = export.export_safetensors

    def __call__(self, checkpoint: Checkpoint, out: Path) -> int:
        self.steps.append(checkpoint.step)
        if self.left:
            self.left -= 1
            with_checkpoint(self.folder, checkpoint.step + 1, KERNEL + checkpoint.step + 1, BIAS)
            assert isinstance(checkpoint.folder, Path)
            shutil.rmtree(checkpoint.folder)
        return self._export(checkpoint, out)


def test_the_newest_checkpoint_is_found_again_after_it_was_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deleting = Deleting(trained(tmp_path), 1)
    monkeypatch.setattr(export, "export_safetensors", deleting)
    assert export.export(tmp_path, tmp_path / "w.safetensors") == 2
    found = safetensors.numpy.load_file(tmp_path / "w.safetensors")["net/dense/kernel"]
    assert (deleting.steps, found.tolist()) == ([0, 1], (KERNEL + 1).tolist())


def test_a_run_that_deletes_each_checkpoint_ends_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deleting = Deleting(trained(tmp_path), 9)
    monkeypatch.setattr(export, "export_safetensors", deleting)
    with pytest.raises(NoCheckpointError):
        export.export(tmp_path, tmp_path / "w.safetensors")
    assert deleting.steps == list(range(deleted.MAX_TRIES))


def test_a_checkpoint_that_the_user_has_named_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deleting = Deleting(trained(tmp_path), 1)
    monkeypatch.setattr(export, "export_safetensors", deleting)
    with pytest.raises(NoCheckpointError):
        export.export(tmp_path / "checkpoints" / "00000000-g1", tmp_path / "w.safetensors")
    assert deleting.steps == [0]


@pytest.mark.parametrize(("code", "is_gone"), [(65, False), (70, True)])
def test_other_errors_are_those_of_the_command(code: int, is_gone: bool) -> None:
    looks: list[int] = []

    def find() -> int:
        looks.append(0)
        return 0

    def use(found: int) -> None:
        error = PsfleetError("failed")
        error.exit_code = code
        raise error

    with pytest.raises(PsfleetError, match="failed"):
        deleted.use_found(find, use, lambda found: is_gone)
    assert len(looks) == 1
