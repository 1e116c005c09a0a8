"""`psfleet.train` in a real Jupyter kernel: a function of a cell is the program, and report and progress are shown."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.blocking import BlockingKernelClient
from jupyter_client.manager import start_new_kernel
from support.line_program import DEFINITIONS, job_line

pytestmark = pytest.mark.usefixtures("launches_forked")

START_SECS = 60
CELL_SECS = 120

TRAIN = f"""
{job_line("cell", 100)}
report = psfleet.train(job, program=build, overrides=["train.steps=40"])
"""


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[BlockingKernelClient]:
    """A kernel whose current folder is the test's."""
    manager, client = start_new_kernel(startup_timeout=START_SECS, cwd=str(tmp_path))
    try:
        yield client
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def run(kernel: BlockingKernelClient, cell: str) -> list[dict[str, Any]]:
    """Runs a cell; the content of each of its outputs."""
    outputs: list[dict[str, Any]] = []

    def collect(message: dict[str, Any]) -> None:
        if message["msg_type"] in ("stream", "display_data", "execute_result", "error"):
            outputs.append(message["content"])

    reply = kernel.execute_interactive(cell, timeout=CELL_SECS, output_hook=collect)
    assert reply["content"]["status"] == "ok", outputs
    return outputs


@pytest.mark.extended
def test_a_function_of_a_cell_is_trained_and_its_report_is_shown(kernel: BlockingKernelClient, tmp_path: Path) -> None:
    run(kernel, DEFINITIONS)
    shown = json.dumps(run(kernel, TRAIN))
    assert "starting 1 ps and 1 worker" in shown
    assert "step 40 of 40" in shown
    [values] = run(kernel, "print(report.status, report.final_step, report.eval['loss'] < 1e-3)")
    assert values["text"].split() == ["done", "40", "True"]
    [page] = run(kernel, "report.show()")
    assert "<iframe" in page["data"]["text/html"]
    assert "Done: step 40 of 40" in page["data"]["text/html"]
    [page_of_file] = run(kernel, "psfleet.Report.read('runs/cell').show()")
    assert page_of_file["data"]["text/html"] == page["data"]["text/html"]
    assert (tmp_path / "runs" / "cell" / "program" / "stored_program.pkl").exists()
