"""Trains, saves and resumes a table of 2 GB with its optimizer slot, and measures memory, time and disk.

2 workers + 1 ps as processes of this machine. Every row is updated. The resumed run must have the table of one that was
not interrupted, bit for bit.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter

import numpy as np

import psfleet
from benchmarks.lookups.program import IDS, NAME, STEPS_FILE
from benchmarks.machine import machine_facts
from benchmarks.sampling import sampling
from benchmarks.table_contenders import PROGRAM, WORKERS, find_process, resident_bytes
from psfleet.checkpoint import store
from psfleet.checkpoint.manifest import Checkpoint
from psfleet.checkpoint.tensors import table_ranges

RESULTS = Path(__file__).parent / "results" / "large_table.json"
EPOCH_STEPS = 20
SAMPLE_SECS = 0.1


def main(arguments: Sequence[str]) -> int:
    """Parses the command line, measures, prints the figures; deletes what the runs wrote."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.large_table", description=__doc__)
    parser.add_argument("--rows", type=int, default=16_000_000, help="of 16 float32 and as many accumulators")
    parser.add_argument("--json", type=Path, default=RESULTS, help="file for every figure")
    args = parser.parse_args(arguments)
    figures: dict[str, object] = {"rows": args.rows, "machine": machine_facts()}
    with tempfile.TemporaryDirectory(prefix="psfleet-bench-") as folder:
        resumed, whole = Path(folder, "resumed"), Path(folder, "whole")
        figures["first epoch"] = trained(resumed, args.rows, EPOCH_STEPS)
        figures["resumed"] = trained(resumed, args.rows, EPOCH_STEPS * 3 // 2)
        figures["not interrupted"] = trained(whole, args.rows, EPOCH_STEPS * 3 // 2)
        figures["equal rows"] = equal_rows(newest(resumed), newest(whole))
    print(json.dumps(figures, indent=2))
    args.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0 if figures["equal rows"] == args.rows else 1


def trained(out: Path, rows: int, steps: int) -> dict[str, float]:
    """Trains up to a step: seconds, memory of the ps, size of the checkpoint, and the last ten steps."""
    batch_size = rows // WORKERS // EPOCH_STEPS // IDS
    job = {
        "name": "bench-large-table",
        "program": "program:build",
        "options": {"rows": rows, "batch_size": batch_size, "all_rows": True},
        "fleet": {"ps": 1, "workers": WORKERS},
        "optimizer": {"name": "adagrad", "learning_rate": 0.1},
        "train": {"steps": steps, "batch_size": batch_size},
        "checkpoint": {"every_steps": EPOCH_STEPS // 4, "keep": 1},
        "tables": {NAME: {"rows": rows}},
        "callbacks": ["program:Measurements"],
    }
    began = perf_counter()
    with peak_memory(out / "logs" / "ps-0.log") as peak:
        report = psfleet.train(job, out=out, program_folder=PROGRAM)
    if report.status != "done":
        sys.exit(f"benchmark failed: {report.error}")
    lines = [json.loads(line) for line in (out / STEPS_FILE).read_text().splitlines()]
    secs = [each["secs"] for each in lines[-10:]]
    files = [path.stat().st_size for path in newest(out).folder.iterdir()]
    return {
        "secs": perf_counter() - began,
        "ps_gb": max(peak) / 1e9,
        "checkpoint_gb": sum(files) / 1e9,
        "median_step_secs": float(np.median(secs)),
        "longest_step_secs": max(secs),
    }


@contextmanager
def peak_memory(log: Path) -> Iterator[list[int]]:
    """Samples the memory of the service that writes a log; the list has its bytes at the end of the block."""
    samples: list[int] = [0]
    pid = 0

    def sample() -> None:
        nonlocal pid
        pid = pid if resident_bytes(pid) else find_process(log)
        samples.append(resident_bytes(pid))

    with sampling(sample, SAMPLE_SECS):
        yield samples


def newest(out: Path) -> Checkpoint:
    """The newest complete checkpoint of a run."""
    found = store.newest(out / "checkpoints")
    if found is None:
        sys.exit(f"benchmark failed: {out} has no checkpoint")
    return found


def equal_rows(one: Checkpoint, other: Checkpoint) -> int:
    """How many rows two checkpoints have with the same bits."""
    (table,) = one.layout.embeddings
    count = 0
    for (ids, rows), (others, values) in itertools.zip_longest(table_ranges(one, table), table_ranges(other, table)):
        # Both runs have created the rows in the same order.
        count += int(np.sum((ids == others) & (rows == values).all(1)))
    return count


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
