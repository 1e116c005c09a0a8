"""Trains LeNet-5 in pieces of 50 steps, and evaluates after each: a script drives the fleet."""

from __future__ import annotations

import sys
from pathlib import Path

import psfleet

JOB = Path(__file__).parents[1] / "lenet" / "job.yaml"


def main(num_pieces: int = 3) -> None:
    """Prints the metrics after each piece."""
    run = psfleet.start(JOB, out="runs/remote", fresh=True, paused=True)
    try:
        for _ in range(num_pieces):
            step = run.train(50).result()
            metrics = run.evaluate().result()
            sys.stdout.write(f"step {step}: accuracy {metrics['accuracy']:.3f}\n")
        sys.stdout.write(f"saved in {run.save()}\n")
    finally:
        run.stop()
        run.wait()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
