"""`make scan` with stand-ins for the scanners: what it runs, and how it ends."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "docker" / "scan.sh"
IMAGES = ("psfleet-ps:latest", "psfleet-worker:latest")


def scan(folder: Path, **commands: int) -> subprocess.CompletedProcess[str]:
    """Runs the script with only these commands installed, which exit with these codes."""
    for name in ("bash", "dirname"):
        (folder / name).symlink_to(shutil.which(name) or name)
    for name, code in commands.items():
        path = folder / name.replace("_", "-")
        path.write_text(f"#!/bin/bash\nexit {code}\n")
        path.chmod(0o755)
    return subprocess.run(
        ["bash", str(SCRIPT)], env={"PATH": str(folder)}, capture_output=True, text=True, timeout=30, check=False
    )


def test_without_a_scanner_it_says_in_one_line_what_is_missing(tmp_path: Path) -> None:
    done = scan(tmp_path, docker=0)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        "make scan: no scanner is installed, expected pip-audit (uv tool install pip-audit), trivy or grype\n"
    )


@pytest.mark.parametrize("code", [0, 1])
def test_pip_audit_looks_at_every_lock(tmp_path: Path, code: int) -> None:
    done = scan(tmp_path, pip_audit=code)
    assert done.returncode == code
    locks = [line.split()[-1] for line in done.stdout.splitlines()]
    assert locks == ["requirements.lock", "requirements-gpu.lock", "requirements-dev.lock"]
    assert all((SCRIPT.parents[1] / lock).exists() for lock in locks)


@pytest.mark.parametrize("scanner", ["trivy", "grype"])
@pytest.mark.parametrize("code", [0, 1])
def test_a_scanner_of_images_looks_at_both(tmp_path: Path, scanner: str, code: int) -> None:
    done = scan(tmp_path, **{"docker": 0, scanner: code})
    assert done.returncode == code
    lines = done.stdout.splitlines()
    assert [line.split()[-1] for line in lines] == list(IMAGES)
    assert all(line.startswith(f"make scan: {scanner} ") for line in lines)


def test_an_image_that_is_not_built_is_named(tmp_path: Path) -> None:
    done = scan(tmp_path, docker=1, trivy=0)
    assert done.returncode == 1
    assert [line.split()[6].rstrip(",") for line in done.stderr.splitlines()] == list(IMAGES)
