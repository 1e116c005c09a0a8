"""The commands for a run that trains at present."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from support.checkpoint_samples import sample_layout
from support.command_line import Psfleet
from support.container_run import UP, Containers, serving
from support.live_chief import live

from psfleet.checkpoint.manifest import read_manifest
from psfleet.checkpoint.replacement import specs_of
from psfleet.errors import USAGE
from psfleet.handle import starting

ZEROS = {name: np.zeros(spec.shape, spec.dtype) for name, spec in specs_of(sample_layout()).items()}


def test_save_prints_the_folder_of_a_checkpoint(psfleet: Psfleet, tmp_path: Path) -> None:
    with live(tmp_path / "run"):
        said = psfleet("save", "small", "--out", str(tmp_path / "run"))
        assert said.code == 0
        assert read_manifest(Path(said.out.strip())).step > 40
        assert psfleet("save", str(tmp_path / "run")).code == 0, "a run folder stands for its job"
    assert psfleet("save", str(tmp_path / "run")).code == USAGE


def test_weights_of_a_file_replace_those_of_a_run(psfleet: Psfleet, tmp_path: Path) -> None:
    file = tmp_path / "new.safetensors"
    safetensors.numpy.save_file(ZEROS, file)
    with live(tmp_path / "run", held_at=40) as chief:
        said = psfleet("weights", "--set", str(file), str(tmp_path / "run"))
        assert said.code == 0, said.err
        assert f"{len(ZEROS)} tensors are those of {file} from step 40 on" in said.out
        assert chief.generation == 3
        safetensors.numpy.save_file({"dense/bias": ZEROS["dense/bias"]}, file)
        said = psfleet("weights", "--set", str(file), str(tmp_path / "run"))
        assert f"1 tensor is that of {file} from step 40 on" in said.out


@pytest.mark.parametrize(
    "words", [(), ("--set", "a.safetensors", "--out", "b.safetensors"), ("--set", "a.safetensors", "--best")]
)
def test_weights_are_either_exported_or_set(psfleet: Psfleet, words: tuple[str, ...]) -> None:
    said = psfleet("weights", "runs/small", *words)
    assert said.code == USAGE
    assert "expected either --out FILE" in said.err


def test_a_file_that_is_not_in_the_format_is_refused(psfleet: Psfleet, tmp_path: Path) -> None:
    file = tmp_path / "new.safetensors"
    file.write_bytes(b"nothing")
    with live(tmp_path / "run", held_at=40):
        said = psfleet("weights", "--set", str(file), str(tmp_path / "run"))
    assert said.code == USAGE
    assert "expected a file in safetensors format" in said.err


@pytest.mark.parametrize("dtype", ["BF16", "F8_E4M3"])
def test_a_file_with_tensors_of_a_type_that_no_model_has_is_refused(
    psfleet: Psfleet, tmp_path: Path, dtype: str
) -> None:
    file = tmp_path / "new.safetensors"
    header = json.dumps({"dense/bias": {"dtype": dtype, "shape": [0], "data_offsets": [0, 0]}}).encode()
    file.write_bytes(struct.pack("<Q", len(header)) + header)
    with live(tmp_path / "run", held_at=40):
        said = psfleet("weights", "--set", str(file), str(tmp_path / "run"))
    assert said.code == USAGE
    assert f"--set {file}: tensor 'dense/bias' is {dtype}, expected one of F64, I64," in said.err


def test_a_run_in_containers_is_found_by_its_name_and_platform(
    psfleet: Psfleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, asked = Containers(UP), []
    monkeypatch.setattr(starting, "platform", lambda *words: asked.append(words) or place)
    words = ("--on", "kubernetes", "--context", "there", "--namespace", "here")
    file = tmp_path / "new.safetensors"
    safetensors.numpy.save_file(ZEROS, file)
    with serving(place, tmp_path / "inside", held_at=40) as chief:
        said = psfleet("save", "small", *words)
        assert said.code == 0, said.err
        assert read_manifest(Path(said.out.strip())).step == 40
        said = psfleet("weights", "small", "--set", str(file), *words)
        assert said.code == 0, said.err
        assert "small on kubernetes: 10 tensors are those of" in said.out
        assert chief.generation == 3
    assert set(asked) == {("kubernetes", "there", "here")}
    assert "are for --set FILE" in psfleet("weights", "runs/small", "--out", "a.safetensors", *words).err
