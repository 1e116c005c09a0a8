"""Shows a report in a Jupyter notebook."""

from __future__ import annotations

import html as markup
from pathlib import Path

from psfleet.errors import UsageError
from psfleet.report import html
from psfleet.report.schema import Report

HEIGHT = 720
"""Of the frame in the cell's output, in pixels; it scrolls."""


def show(report: Report, folder: Path | None) -> None:
    """Shows the page of a report in the output of a cell; see `Report.show`."""
    if folder is None:
        raise UsageError("this report has no run folder, expected one that `train` returned or `Report.read` read")
    try:
        from IPython.core.getipython import get_ipython
        from IPython.display import display
    except ImportError as error:
        raise UsageError(f"there is no notebook; the page is {folder / 'report.html'}") from error
    if get_ipython() is None:
        raise UsageError(f"there is no notebook; the page is {folder / 'report.html'}")
    display(_Page(html.page(report, folder)))


class _Page:
    """A page in a frame, which keeps its style apart from that of the notebook."""

    def __init__(self, text: str) -> None:
        self._text = text

    def _repr_html_(self) -> str:
        return (
            f'<iframe srcdoc="{markup.escape(self._text)}" width="100%" height="{HEIGHT}" style="border: 0"></iframe>'
        )
