"""A training program's files in a ConfigMap."""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import Any

import pytest

from psfleet.errors import UsageError
from psfleet.manifests.kubernetes.program_configmap import MOST_BYTES, Files


def test_files_of_any_kind_and_in_folders_are_taken(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "program.py").write_text("x = 'é'\n")
    (tmp_path / "data" / "digits.gz").write_bytes(b"\x1f\x8b\xff")
    files = Files.of(tmp_path)
    content = files.config_map("small")
    assert content["data"] == {"program.py": "x = 'é'\n"}
    assert {key: base64.b64decode(text) for key, text in content["binaryData"].items()} == {
        "data_digits.gz": b"\x1f\x8b\xff"
    }
    assert files.items() == [
        {"key": "data_digits.gz", "path": "data/digits.gz"},
        {"key": "program.py", "path": "program.py"},
    ]


def test_paths_that_look_alike_have_keys_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b").write_text("1")
    (tmp_path / "a_b").write_text("2")
    keys = [item["key"] for item in Files.of(tmp_path).items()]
    assert len(set(keys)) == 2


@pytest.mark.parametrize(
    "name",
    [
        ".secret", "__pycache__/program.pyc", "runs/small/report.json", "studies/small/study.db", "a/.git/config",
        "services/small/logs/front.log",
    ],
)  # fmt: skip
def test_what_is_no_part_of_a_program_stays_behind(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("x")
    assert not Files.of(tmp_path).content


@pytest.mark.parametrize("kind", ["PRIVATE KEY", "EC PRIVATE KEY", "ENCRYPTED PRIVATE KEY"])
def test_private_keys_stay_behind_which_a_line_says(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    (tmp_path / "certificates").mkdir()
    (tmp_path / "certificates" / "ca.key").write_text(f"# of the fleet\n-----BEGIN {kind}-----\nMC4C\n")
    (tmp_path / "ca.crt").write_text("-----BEGIN CERTIFICATE-----\nMC4C\n")
    (tmp_path / "program.py").write_text(f'BEGIN = "-----BEGIN {kind}-----"\n')
    assert Files.of(tmp_path).content.keys() == {"ca.crt", "program.py"}
    assert [record.getMessage() for record in caplog.records] == [
        f"{tmp_path}/certificates/ca.key is not given to the cluster: it has a private key",
        f"{tmp_path}/program.py has a private key, which the pods of workers have, too",
    ]


@pytest.mark.parametrize("name", ["services", "app/services", "runs"])
def test_a_package_that_is_named_like_a_folder_of_results_is_taken(tmp_path: Path, name: str) -> None:
    path = tmp_path / name / "users.py"
    (path.parent / "__pycache__").mkdir(parents=True)
    path.write_text("x = 1\n")
    assert Files.of(tmp_path).content.keys() == {f"{name}/users.py"}


def test_a_script_beside_results_does_not_make_them_a_package(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "small"
    run.mkdir(parents=True)
    (run / ".lock").touch()
    (run / "report.json").write_text("{}")
    (run.parent / "plot.py").write_text("x = 1\n")
    assert not Files.of(tmp_path).content


def test_a_program_that_is_too_large_is_refused_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(bytes(MOST_BYTES + 1))
    with pytest.raises(UsageError, match=r"more than .* bytes, expected less .*container.program: image"):
        Files.of(tmp_path)


def test_folders_that_stay_behind_are_not_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A virtual environment beside the program has ten thousands of files."""
    for name in (".venv/lib", ".git/objects", "runs/small", "data"):
        (tmp_path / name).mkdir(parents=True)
    searched: list[str] = []
    scandir = os.scandir

    def scan(path: str | Path) -> Any:
        searched.append(os.path.relpath(path, tmp_path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", scan)
    assert not Files.of(tmp_path).content
    assert searched == [".", "data"]
