"""Without TensorFlow, a command or service that needs it names the extra to install."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.command_line import Psfleet

import psfleet as package
from psfleet.checkpoint import export as export_module

NEED_TENSORFLOW = (
    ("train", "job.yaml"),
    ("validate", "job.yaml"),
    ("weights", "checkpoints", "--out", "weights.weights.h5"),
    ("weights", "checkpoints", "--out", "model.keras"),
    ("export", "checkpoints", "--out", "served"),
)
NO_TENSORFLOW = "TensorFlow is not installed, expected an extra: pip install 'psfleet[cpu]' or 'psfleet[gpu]'"


@pytest.mark.parametrize("command", NEED_TENSORFLOW, ids=" ".join)
def test_a_command_that_needs_tensorflow_names_the_extra_if_it_is_missing(
    psfleet: Psfleet, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    said = psfleet(*command)
    assert (said.code, said.out, said.err) == (64, "", f"psfleet: {NO_TENSORFLOW}\n")
    assert not Path("runs").exists(), "nothing is started"


def test_weights_as_safetensors_need_no_tensorflow(psfleet: Psfleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    monkeypatch.setattr(export_module, "export", lambda source, out, best, is_live: 7)
    assert psfleet("weights", "checkpoints", "--out", "w.safetensors").code == 0


@pytest.mark.parametrize("service", ["ps_service", "worker_service"])
def test_a_service_without_tensorflow_ends_with_one_line_that_names_the_extra(service: str, tmp_path: Path) -> None:
    program = f"import runpy, sys; sys.modules['tensorflow'] = None; runpy.run_module('{service}', run_name='__main__')"
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(Path(package.__file__).parents[1])}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (64, "")
    *_, line = done.stdout.splitlines()
    entry = json.loads(line)
    assert (entry["event"], entry["message"], entry["details"]) == ("failed", NO_TENSORFLOW, "")
