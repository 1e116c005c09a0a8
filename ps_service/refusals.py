"""How a ps refuses calls: the status with which a call ends, for each error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import grpc

from psfleet.errors import LostPeerError, PsfleetError, ReplacedError, StorageError


@contextmanager
def refusals(context: grpc.ServicerContext) -> Iterator[None]:
    """Aborts a call with the status that `psfleet.control.client` turns into the same error at the caller."""
    try:
        yield
    except ReplacedError as error:
        context.abort(grpc.StatusCode.ABORTED, str(error))
    except (LostPeerError, StorageError) as error:
        context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
    except PsfleetError as error:
        refuse(context, str(error))


def refuse(context: grpc.ServicerContext, message: str) -> NoReturn:
    """Aborts a call that would fail again."""
    context.abort(grpc.StatusCode.FAILED_PRECONDITION, message)
    raise AssertionError("abort() raises")
