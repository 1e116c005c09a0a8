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
    """Whether the evaluation of the final step is missing in a report: the next attempt makes it."""
    begin = not_in_time(report.final_step, "")
    return any(event.kind == SKIPPED and event.cause.startswith(begin) for event in report.events)
