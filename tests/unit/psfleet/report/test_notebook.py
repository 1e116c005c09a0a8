"""`Report.show` outside of a notebook; tests/fleet/test_notebook.py has a real one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.report_samples import DONE

from psfleet.errors import UsageError
from psfleet.report.schema import Report


@pytest.mark.parametrize("has_ipython", [True, False])
def test_without_a_notebook_the_path_of_the_page_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_ipython: bool
) -> None:
    DONE.write(tmp_path)
    if not has_ipython:
        monkeypatch.setitem(sys.modules, "IPython", None)
    with pytest.raises(UsageError, match=f"there is no notebook; the page is {tmp_path / 'report.html'}"):
        Report.read(tmp_path).show()


def test_a_report_without_a_folder_cannot_be_shown() -> None:
    with pytest.raises(UsageError, match="this report has no run folder"):
        DONE.show()
