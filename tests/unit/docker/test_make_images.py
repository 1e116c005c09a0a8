"""The build arguments of `make images`: a base image by its digest, and the lock of GPU images."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PINNED = f"python@sha256:{'0' * 64}"

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def builds(*variables: str) -> list[str]:
    """The commands that would build both images."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    done = subprocess.run(
        ["make", "--dry-run", "images", *variables],
        cwd=ROOT, capture_output=True, text=True, timeout=30, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [line for line in done.stdout.splitlines() if "docker build" in line]


def test_a_base_image_is_pinned_by_its_digest_in_both_builds() -> None:
    found = builds(f"BASE_IMAGE={PINNED}")
    assert [f"--build-arg BASE_IMAGE={PINNED} " in command for command in found] == [True, True]
    text = (ROOT / "docker/Dockerfile").read_text(encoding="utf-8")
    stages = [line.split()[1] for line in text.splitlines() if line.startswith("FROM ")]
    assert {stage for stage in stages if stage.startswith("${")} == {"${BASE_IMAGE}"}, "no other image is pulled"


def test_gpu_images_have_a_lock_and_a_tag_of_their_own() -> None:
    found = builds("EXTRA=gpu")
    assert all("--build-arg LOCK=requirements-gpu.lock " in command for command in found)
    assert [command.split("--tag ")[1].split()[0] for command in found] == ["psfleet-ps:gpu", "psfleet-worker:gpu"]
