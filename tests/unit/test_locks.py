"""The locks install on the platforms that the documentation names, from wheels alone."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import uv

ROOT = Path(__file__).parents[2]
UNREACHABLE = "Failed to fetch"
"""What uv says if no package index answers."""


@pytest.mark.parametrize(
    ("lock", "platform"),
    [
        ("requirements.lock", "aarch64-unknown-linux-gnu"),
        ("requirements.lock", "aarch64-apple-darwin"),
        ("requirements-gpu.lock", "x86_64-unknown-linux-gnu"),
    ],
)
def test_a_lock_installs_from_wheels(lock: str, platform: str, tmp_path: Path) -> None:
    """Resolves only, by the pages of the index. `make venv` shows it for Linux on x86-64."""
    done = subprocess.run(
        [
            uv.find_uv_bin(), "pip", "install", "--dry-run", "--target", str(tmp_path), "--python-version", "3.11",
            "--python-platform", platform, "--require-hashes", "--only-binary", ":all:",
            "--requirement", str(ROOT / lock),
        ],
        capture_output=True, text=True, timeout=50, env={**os.environ, "UV_HTTP_RETRIES": "0", "UV_HTTP_TIMEOUT": "10"},
    )  # fmt: skip
    if UNREACHABLE in done.stderr:
        pytest.skip("no package index answers")
    assert done.returncode == 0, done.stderr
    assert " + tensorflow==2.21" in done.stderr, "tensorflow-cpu has wheels for x86-64 alone"
