"""How a user's program gets into a worker: by a mount, or by a two-line Dockerfile; with packages of its own, too."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.images import LOCKED, ROOT, WORKER_IMAGE, built, docker, inspect
from support.plain_fleet import TRAIN_SECS, training

from psfleet.job.job import parse_job

PROGRAM = Path(__file__).parents[1] / "support" / "programs" / "varied_program.py"
JOB: dict[str, Any] = {
    "name": "varied",
    "program": "varied_program:build",
    "optimizer": {"name": "adam", "learning_rate": 0.01},
    "train": {"steps": 30, "batch_size": 10, "shuffle": 100, "seed": 7},
    "evaluate": {"every_steps": 30},
    "checkpoint": {"every_steps": 10},
    "container": {"program": "image"},
}
TWO_LINES = f"FROM {WORKER_IMAGE}\nCOPY . /program\n"
PACKAGED = f"""\
FROM python:3.11-slim-bookworm AS packages
RUN pip install --no-cache-dir --target /packages tabulate==0.9.0
FROM {WORKER_IMAGE}
COPY --from=packages /packages /opt/psfleet/extra
COPY . /program
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A job file and its program, readable by the images' user."""
    tmp_path.chmod(0o755)
    shutil.copy(PROGRAM, tmp_path)
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(JOB))
    return tmp_path


@pytest.fixture
def image(folder: Path) -> Iterator[str]:
    """An image that a two-line Dockerfile makes of the worker's."""
    (folder / "Dockerfile").write_text(TWO_LINES)
    with built(folder) as tag:
        yield tag


def validate(image: str, *options: str) -> str:
    """What `psfleet validate` prints in a container as locked as a fleet's."""
    arguments = ("--rm", "--entrypoint", "psfleet", "--network", "none", *LOCKED, *options)
    return docker("run", *arguments, image, "validate", "job.yaml", timeout_secs=TRAIN_SECS).stdout


@pytest.mark.parametrize("dockerfile", [TWO_LINES, PACKAGED])
def test_the_docs_show_the_dockerfiles_that_are_tested(dockerfile: str) -> None:
    assert f"```Dockerfile\n{dockerfile}```" in (ROOT / "docs" / "containers.md").read_text()


def test_a_mounted_program_is_found(folder: Path) -> None:
    assert "valid, KerasProgram varied" in validate(WORKER_IMAGE, "--volume", f"{folder}:/program:ro")


def test_a_program_trains_from_an_image_that_two_lines_made(image: str) -> None:
    """Embedding, LSTM, batch normalisation, tf.data and TensorBoard work with what the images left out."""
    assert "valid, KerasProgram varied" in validate(image)
    base, made = inspect(WORKER_IMAGE), inspect(image)
    assert made["RootFS"]["Layers"][:-1] == base["RootFS"]["Layers"]
    assert made["Config"]["User"] == base["Config"]["User"]
    with training(parse_job(JOB), image) as fleet:
        assert fleet.worker.wait(TRAIN_SECS) == 0, fleet.worker.logs()[-4000:]
        assert fleet.ps.wait(TRAIN_SECS) == 0, fleet.ps.logs()[-4000:]
        report = fleet.report()
        assert fleet.files("tensorboard"), "there are no scalars for TensorBoard"
    assert (report.status, report.final_step) == ("done", 30)
    assert report.eval.keys() >= {"accuracy", "loss"}


def test_a_program_has_packages_that_the_images_lack(folder: Path) -> None:
    """Installed beside the locked ones, which stay as they are."""
    program = folder / PROGRAM.name
    program.write_text(program.read_text() + "\nimport tabulate\nassert tabulate.__version__ == '0.9.0'\n")
    (folder / "Dockerfile").write_text(PACKAGED)
    with built(folder) as tag:
        assert "valid, KerasProgram varied" in validate(tag)
