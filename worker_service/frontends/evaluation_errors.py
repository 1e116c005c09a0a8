"""What can fail in an evaluation, as errors of the program."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import tensorflow as tf

from psfleet.errors import ProgramError, PsfleetError
from psfleet.job.job import Job
from psfleet.job.user_code import failure
from worker_service.frontends import table_rows

_WHAT = "evaluating the model"


@contextmanager
def evaluating(job: Job, what: str = _WHAT) -> Iterator[None]:
    """Converts any exception in the block to a ProgramError, except psfleet's own, such as the loss of a peer."""
    try:
        yield
    except PsfleetError:
        raise
    except tf.errors.OpError as error:
        cause = table_rows.failure(error.message)
        if cause is not None:
            raise ProgramError(f"program {job.program!r}: {what}: {cause}") from error
        # A session's error has the reason behind a heading; that of the operation begins with it.
        original = error.__context__
        raise failure(job, what, original if isinstance(original, tf.errors.OpError) else error) from error
    except (Exception, SystemExit) as error:
        raise failure(job, what, error) from error


def require_examples(job: Job, has_any: bool) -> None:
    """Refuses an evaluation without examples; when it was built, the front end has read the first one.

    Raises:
        ProgramError: `has_any` is false.
    """
    if not has_any:
        raise ProgramError(
            f"program {job.program!r}: the evaluation data are empty when they are read again, expected examples in "
            "each evaluation"
        )
