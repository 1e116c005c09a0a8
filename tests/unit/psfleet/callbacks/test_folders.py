"""The folders of callbacks: each callback finds its own again when a run resumes with a changed list of callbacks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from psfleet.callbacks.folders import RECORD, state_folders
from psfleet.job.callback import CallbackSpec
from psfleet.run_folder import CALLBACKS, clear


def log(file: str = "") -> CallbackSpec:
    return CallbackSpec(use="watching:Log", options={"file": file} if file else {})


MLFLOW = CallbackSpec(use="mlflow")
LOG_FOLDER = "callback-watching.Log"


def names(parent: Path, specs: Sequence[CallbackSpec]) -> list[str]:
    found = state_folders(parent, specs)
    assert all(folder.is_dir() for folder in found)
    return [folder.name for folder in found]


def test_the_folder_of_a_callback_has_the_name_of_its_use(tmp_path: Path) -> None:
    assert names(tmp_path / "callbacks", [MLFLOW, log()]) == ["callback-mlflow", LOG_FOLDER]


@pytest.mark.parametrize(
    ("specs", "expected"),
    [
        ([log("one")], [LOG_FOLDER]),
        ([log("one"), log("two")], [LOG_FOLDER, f"{LOG_FOLDER}-2"]),
        ([log("two"), log("one")], [f"{LOG_FOLDER}-2", LOG_FOLDER]),
        ([MLFLOW, log("one")], ["callback-mlflow", LOG_FOLDER]),
        ([log("changed")], [LOG_FOLDER]),
        ([log("changed"), log("two")], [LOG_FOLDER, f"{LOG_FOLDER}-2"]),
        ([log("one"), log("one")], [LOG_FOLDER, f"{LOG_FOLDER}-2"]),
    ],
    ids=[
        "unchanged",
        "another one of the same use is appended",
        "another one of the same use is put before it",
        "another use is put before it",
        "its options change",
        "its options change, and another one is appended",
        "a copy of it is appended",
    ],
)
def test_a_callback_keeps_its_folder_in_the_next_start(
    tmp_path: Path, specs: Sequence[CallbackSpec], expected: list[str]
) -> None:
    names(tmp_path, [log("one")])
    assert names(tmp_path, specs) == expected


def test_a_callback_that_stays_does_not_take_the_folder_of_one_that_goes(tmp_path: Path) -> None:
    both = names(tmp_path, [log("one"), log("two")])
    assert names(tmp_path, [log("two")]) == both[1:]
    assert names(tmp_path, [log("two"), log("one")]) == both[::-1]


def test_two_equal_callbacks_keep_a_folder_each(tmp_path: Path) -> None:
    both = names(tmp_path, [log(), log()])
    assert len(set(both)) == 2
    assert names(tmp_path, [log(), log()]) == both


@pytest.mark.parametrize("content", ["", "[1]", '[{"use": "a"}]', '{"use": 1}', '[{"x": 1}]'])
def test_a_record_that_cannot_be_read_is_logged_and_written_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: str
) -> None:
    (tmp_path / RECORD).write_text(content)
    assert names(tmp_path, [log("one")]) == [LOG_FOLDER]
    assert f"{RECORD} cannot be read" in caplog.text
    caplog.clear()
    assert names(tmp_path, [log("two"), log("one")]) == [f"{LOG_FOLDER}-2", LOG_FOLDER]
    assert caplog.text == ""


def test_a_fresh_run_forgets_the_folders(tmp_path: Path) -> None:
    names(tmp_path / CALLBACKS, [log("one"), log("two")])
    clear(tmp_path, (CALLBACKS,))
    assert not (tmp_path / CALLBACKS).exists()
