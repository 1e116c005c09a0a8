"""The README's own job and program train, and its other commands work on what that run leaves.

docs/first-day.md shows how a longer run resumes: see test_first_day.py.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from support import commands
from support.command_line import Psfleet

from psfleet.report.schema import Report

README = Path(__file__).parents[2] / "README.md"
COMMAND_SECS = 150.0
STEPS = 60
"""Instead of the 900 of the README's job."""
SHORTER = (f"train.steps={STEPS}", "fleet.workers=1", "optimizer.learning_rate=0.02")
"""The job with fewer steps, and a worker and a spare; it learns faster, and so has the accuracy of a trained model."""


def block(language: str, title: str) -> str:
    """The README's code block of a language that begins with a comment of that title."""
    found: list[str] = re.findall(
        rf"^```{language}\n(# {re.escape(title)}\n.*?)^```", README.read_text(), re.DOTALL | re.MULTILINE
    )
    assert len(found) == 1, f"README.md has {len(found)} {language} blocks that begin with `# {title}`"
    return found[0]


def psfleet(folder: Path, *arguments: str) -> str:
    """Runs a command in a folder to exit code 0; its standard output."""
    done = commands.psfleet(folder, *arguments, timeout_secs=COMMAND_SECS)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the README's job and program, trained into `runs/mine`."""
    folder = tmp_path_factory.mktemp("readme")
    (folder / "job.yaml").write_text(block("yaml", "job.yaml"))
    (folder / "program.py").write_text(block("python", "program.py"))
    psfleet(folder, "train", "job.yaml", *[text for override in SHORTER for text in ("--set", override)])
    return folder


def test_the_readmes_own_model_trains(trained: Path) -> None:
    report = Report.read(trained / "runs" / "mine")
    assert (report.status, report.final_step) == ("done", STEPS)
    assert report.eval["accuracy"] > 0.9


def test_its_job_is_valid(trained: Path, monkeypatch: pytest.MonkeyPatch, psfleet_here: Psfleet) -> None:
    monkeypatch.chdir(trained)
    said = psfleet_here("validate", "job.yaml")
    # TensorFlow counts the functions that other tests have traced in this process.
    said_of_it = [line for line in said.err.splitlines() if "triggered tf.function retracing" not in line]
    assert (said.code, said_of_it) == (0, [])
    assert "valid, KerasProgram mine" in said.out


def test_its_clusterspec_is_printed(trained: Path) -> None:
    config = json.loads(psfleet(trained, "clusterspec", "job.yaml", "--task", "worker:1"))
    assert len(config["cluster"]["ps"]) == 2
    assert config["task"] == {"type": "worker", "index": 1}


@pytest.mark.parametrize("name", ["weights.safetensors", "model.keras"])
def test_its_weights_are_exported(trained: Path, name: str) -> None:
    printed = psfleet(trained, "weights", "runs/mine/checkpoints", "--out", name)
    assert re.search(r": [1-9]\d* tensors", printed)
    assert (trained / name).stat().st_size > 0


def test_it_is_rendered_as_a_compose_file(trained: Path) -> None:
    services = yaml.safe_load(psfleet(trained, "render", "compose", "job.yaml"))["services"]
    assert {"ps-0", "ps-1", "chief", "worker"} <= set(services)


def test_it_is_rendered_as_kubernetes_manifests(trained: Path) -> None:
    objects = yaml.safe_load_all(psfleet(trained, "render", "kubernetes", "job.yaml"))
    assert [each["metadata"]["name"] for each in objects if each["kind"] == "Job"] == [
        "mine-ps",
        "mine-worker",
        "mine-chief",
    ]


def test_certificates_are_made(trained: Path) -> None:
    psfleet(trained, "certs", "certificates", "--days", "1")
    for role in ("ps", "worker", "client"):
        assert {path.name for path in (trained / "certificates" / role).iterdir()} == {"ca.crt", "tls.crt", "tls.key"}
