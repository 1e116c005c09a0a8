"""Which files make a program, and when two programs are the same."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from psfleet.job.job import parse_job
from psfleet.job.program_files import digest, first_difference, job_files, program_files


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A program that imports a module, a package with relative imports, and the standard library."""
    files = {
        "program.py": "import os\nimport layers\nfrom data import loading\n\ndef build():\n    import late.part\n",
        "layers.py": "SIZE = 3\n",
        "data/__init__.py": "",
        "data/loading.py": "from . import augment\nfrom .. import nothing\nfrom .readers import read\n",
        "data/augment.py": "",
        "data/readers/__init__.py": "from .csv import read\n",
        "data/readers/csv.py": "def read(): pass\n",
        "late/part.py": "",
        "notes.py": "beside = True\n",
        "__pycache__/program.cpython-311.pyc": "",
        "runs/program/job.json": "{}",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_a_program_is_its_module_and_what_this_imports_from_its_folder(folder: Path) -> None:
    assert sorted(program_files("program:build", folder)) == [
        "data/__init__.py",
        "data/augment.py",
        "data/loading.py",
        "data/readers/__init__.py",
        "data/readers/csv.py",
        "late/part.py",
        "layers.py",
        "program.py",
    ]


@pytest.mark.parametrize("name", ["program.py", "layers.py", "data/readers/csv.py", "late/part.py"])
def test_a_change_of_any_of_its_files_is_another_program(folder: Path, name: str) -> None:
    before = program_files("program:build", folder)
    (folder / name).write_text((folder / name).read_text() + "# changed\n")
    after = program_files("program:build", folder)
    assert digest(before) != digest(after)
    assert first_difference(before, after) == name


@pytest.mark.parametrize("name", ["notes.py", "new.py", "data.csv", "__pycache__/x.py", "runs/program/code.py"])
def test_other_files_beside_a_program_are_not_part_of_it(folder: Path, name: str) -> None:
    before = digest(program_files("program:build", folder))
    (folder / name).write_text("other = 1\n")
    assert digest(program_files("program:build", folder)) == before


def test_a_file_that_is_added_or_removed_is_a_difference(folder: Path) -> None:
    before = program_files("program:build", folder)
    (folder / "layers.py").unlink()
    after = program_files("program:build", folder)
    assert first_difference(before, after) == first_difference(after, before) == "layers.py"
    assert first_difference(before, before) == ""


def test_a_config_map_has_the_digest_of_the_folder_it_was_made_from(folder: Path, tmp_path: Path) -> None:
    """kubelet mounts it as links through `..data` to a folder that has the time of the update in its name."""
    for updated in ("..2026_11_22_07_00_00.1", "..2026_11_22_08_00_00.2"):
        mounted = tmp_path / f"mount{updated}"
        (mounted / updated).mkdir(parents=True)
        for name in ("program.py", "layers.py", "data", "late"):
            (mounted / updated / name).symlink_to(folder / name)
            (mounted / name).symlink_to(Path("..data", name))
        (mounted / "..data").symlink_to(updated)
        assert program_files("program:build", mounted) == program_files("program:build", folder)


def test_a_module_of_a_package_is_found_by_its_dotted_name(folder: Path) -> None:
    assert sorted(program_files("data.readers.csv:read", folder)) == [
        "data/__init__.py",
        "data/readers/__init__.py",
        "data/readers/csv.py",
    ]


def test_a_program_on_the_python_path_has_a_digest(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    assert list(program_files("program:build", elsewhere)) == ["program.py"]
    own = "data.loading:build"
    assert program_files(own, elsewhere) == program_files(own, folder), "files of its own package"


def test_packages_beside_an_installed_program_are_not_part_of_it(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are in site-packages, too, and differ between images for CPU and GPU."""
    (folder / "data" / "loading.py").write_text("import layers\nimport late.part\nfrom . import augment\n")
    monkeypatch.syspath_prepend(str(folder))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    before = program_files("data.loading:build", elsewhere)
    assert sorted(before) == ["data/__init__.py", "data/augment.py", "data/loading.py"]
    (folder / "layers.py").write_text("SIZE = 4\n")
    assert program_files("data.loading:build", elsewhere) == before


@pytest.mark.parametrize("program", ["missing:build", "builtins:print", "sys:exit"])
def test_a_program_without_files_has_an_empty_digest(tmp_path: Path, program: str) -> None:
    assert digest(program_files(program, tmp_path)) == ""


def test_a_file_that_python_cannot_parse_counts_by_its_content(folder: Path) -> None:
    (folder / "layers.py").write_text("def broken(\n")
    (folder / "data" / "loading.py").write_bytes(b"\0")
    assert "layers.py" in program_files("program:build", folder)


def test_an_unreadable_folder_has_no_files_of_the_program(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.11 raises PermissionError; the test may run as root, who may read all."""
    locked, stat = folder / "data", Path.stat

    def refuse(path: Path, **more: Any) -> os.stat_result:
        if locked in path.parents:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return stat(path, **more)

    monkeypatch.setattr(Path, "stat", refuse)
    assert sorted(program_files("program:build", folder)) == ["late/part.py", "layers.py", "program.py"]
    assert program_files("readers:build", locked) == {}


def test_the_modules_of_callbacks_in_its_folder_are_part_of_the_program(folder: Path) -> None:
    (folder / "watching.py").write_text("import notes\n")
    content = {"name": "sample", "program": "program:build", "train": {"steps": 1, "batch_size": 1}}
    content |= {"optimizer": {"name": "sgd", "learning_rate": 0.1}}
    job = parse_job({**content, "callbacks": ["mlflow", "watching:Log", "json:loads"]})
    before = job_files(job, folder)
    assert before.keys() - job_files(parse_job(content), folder).keys() == {"watching.py", "notes.py"}
    (folder / "notes.py").write_text("changed = True\n")
    assert first_difference(before, job_files(job, folder)) == "notes.py"
