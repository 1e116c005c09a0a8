"""How a ps refuses a call of its control plane: the status by which the caller knows what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import grpc

from psfleet.control import RETRY_SECS
from psfleet.errors import LostPeerError, PsfleetError, ReplacedError, StorageError


@contextmanager
def refusals(context: grpc.ServicerContext) -> Iterator[None]:
    """Aborts a call with the status that `psfleet.control.client` turns into the same error at the caller."""
    try:
        yield
    except ReplacedError as error:
        context.abort(grpc.StatusCode.ABORTED, str(error))
    except LostPeerError as error:
        if error.retry_secs:
            context.set_trailing_metadata(((RETRY_SECS, f"{error.retry_secs:.3f}"),))
        context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
    except StorageError as error:
        context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
    except PsfleetError as error:
        refuse(context, str(error))


def refuse(context: grpc.ServicerContext, message: str) -> NoReturn:
    """Aborts a call that would fail again."""
    context.abort(grpc.StatusCode.FAILED_PRECONDITION, message)
    raise AssertionError("abort() raises")
