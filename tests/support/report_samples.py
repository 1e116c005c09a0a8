"""Reports: of a run that left everything there is to report, of one that left nothing, and of two attempts."""

from __future__ import annotations

from psfleet.report.attempts import merged, with_attempt
from psfleet.report.measurements import Gradients, Placement, PsGradients, StepSecs, WorkerGradients
from psfleet.report.schema import CheckpointInfo, Event, Report

FAILED = Report(status="failed", exit_code=75, error="lost ps 1", name="a", run="r", mode="sync", target_step=10)
DONE = Report(
    status="done",
    exit_code=0,
    name="lenet",
    run="lenet-1",
    mode="async",
    target_step=1900,
    final_step=1900,
    generation=1,
    seconds=41.5,
    examples_per_sec=7000.0,
    step_secs=StepSecs(p50=0.0125, p95=0.025),
    loss=0.5,
    eval={"accuracy": 0.9876},
    gradients=Gradients(
        pushed=40,
        used=30,
        dropped=10,
        per_worker={
            "10": WorkerGradients(pushed=10, used=9, examples_per_sec=120.0),
            "9": WorkerGradients(pushed=30, used=21),
        },
        per_ps=[PsGradients(pushed=40, used=30, dropped=10)],
    ),
    staleness={"0": 20, "1": 10},
    placement=Placement(ps=[123456], max_over_mean=1.0),
    restarts=1,
    events=[Event(time=1.7e9, role="ps", index=1, kind="killed", cause="signal 9", steps_lost=37)],
    checkpoint=CheckpointInfo(path="checkpoints/step-1900", step=1900),
    versions={"tensorflow": "2.21.0"},
)
TWO_ATTEMPTS = merged(with_attempt(DONE, 1.7e9, 0, []), with_attempt(FAILED, 1.8e9, 1900, ["fleet.ps 1 -> 2"], 2.0))
"""The run that is done, after an attempt that failed before its first step."""
