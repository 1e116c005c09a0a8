"""`Report.show` outside of a notebook; tests/fleet/test_notebook.py has a real one."""

from __future__ import annotations

import sys
from html import escape
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.report_samples import DONE

from psfleet.errors import UsageError
from psfleet.report import html
from psfleet.report.schema import Evaluation, EvaluationLog, Report


@pytest.mark.parametrize("has_ipython", [True, False])
def test_without_a_notebook_the_path_of_the_page_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_ipython: bool
) -> None:
    DONE.write(tmp_path)
    if not has_ipython:
        monkeypatch.setitem(sys.modules, "IPython", None)
    with pytest.raises(UsageError, match=f"there is no notebook; the page is {tmp_path / 'report.html'}"):
        Report.read(tmp_path).show()


def test_a_cell_shows_the_page_of_the_run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same as `report.html`, curves included."""
    shown: list[Any] = []
    monkeypatch.setitem(sys.modules, "IPython.core.getipython", SimpleNamespace(get_ipython=object))
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=shown.append))
    evaluation = Evaluation(time=2.0, step=7, generation=0, secs=0.1, metrics={"f1": 0.75})
    EvaluationLog(tmp_path / EvaluationLog.FILE_NAME).append(evaluation)
    html.publish(DONE, tmp_path).located(tmp_path).show()
    (cell,) = shown
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "Evaluation: f1" in page
    assert escape(page) in cell._repr_html_()


def test_a_report_without_a_folder_cannot_be_shown() -> None:
    with pytest.raises(UsageError, match="this report has no run folder"):
        DONE.show()
