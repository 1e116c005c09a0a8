"""Runs ten jobs one after the other on a kind cluster: `make kind-runs`. Exits with 0 if every run counts.

A run counts if `psfleet up` exits 0 with a verified checkpoint, and every pod that ever was exited 0, also those
that their Job removed when it was complete.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from psfleet.report.schema import Report
from support import kind_cluster
from support.kind_fleet import Space, Watcher, made_space

RUNS = 10
RUN_SECS = 600.0


def run(space: Space) -> str:
    """Trains a small job; returns what was wrong, empty if nothing was."""
    job = space.job_file("again", fleet={"ps": 2, "workers": 2, "spares": 1}, train={"steps": 300, "batch_size": 1})
    with Watcher(space) as watcher:
        output = space.psfleet("up", job, secs=RUN_SECS, code=None)
    report = Report.read(space.folder / "runs" / "again")
    if report.status != "done" or report.final_step != 300:
        return output
    codes = watcher.exit_codes()
    wrong = {name: code for name, code in codes.items() if code != 0}
    if wrong or len(codes) != 5:
        return f"exit codes {codes}"
    return ""


def main() -> int:
    """Prints how each run ended; returns the exit code."""
    was_up = kind_cluster.is_up()
    kind_cluster.up()
    good = 0
    for number in range(1, RUNS + 1):
        started = time.monotonic()
        with tempfile.TemporaryDirectory() as folder, made_space(kind_cluster.kubeconfig(), Path(folder)) as space:
            problem = run(space)
        good += not problem
        print(f"run {number}: {time.monotonic() - started:.0f} s {problem or 'done'}", flush=True)
    print(f"{good} of {RUNS} runs ended well")
    if not was_up:
        kind_cluster.down()
    return 0 if good == RUNS else 1


if __name__ == "__main__":
    sys.exit(main())
