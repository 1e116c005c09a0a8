"""The event of a run that has ended without the evaluation of its last checkpoint."""

from __future__ import annotations

from psfleet.report.schema import Report

SKIPPED = "evaluation_skipped"
"""Kind of the event; also of those of earlier evaluations, which nothing makes up for."""


def not_in_time(step: int, reason: str) -> str:
    """The cause in the event.

    Args:
        step: Of the last checkpoint.
        reason: What has ended the evaluation.
    """
    return f"not evaluated in time: step {step}, {reason}"


def lacks_last(report: Report) -> bool:
    """Whether the evaluation of the final step is missing in a report: the next attempt makes it.

    A report keeps the events of the attempt that trained: those before the newest one do not count.
    """
    started = report.attempts[-1].started if report.attempts else 0.0
    begin, own = not_in_time(report.final_step, ""), [event for event in report.events if event.time >= started]
    return any(event.kind == SKIPPED and event.cause.startswith(begin) for event in own)
