"""The SQLite database of a study, its errors, and Optuna, which is imported when a study runs."""

from __future__ import annotations

import sqlite3
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from psfleet.errors import StorageError, UsageError

DATABASE = "study.db"
"""In the folder of a study."""
LOCK_SECS = 60
"""How long another program may lock the database."""


def optuna_module() -> Any:
    """Imports Optuna, without its log lines and its warnings of interfaces that may change.

    Raises:
        UsageError: It is not installed.
    """
    try:
        import optuna
    except ImportError as error:
        raise UsageError("Optuna is not installed, expected the extra: pip install 'psfleet[sweep]'") from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    return optuna


@contextmanager
def storage_errors(folder: Path) -> Iterator[None]:
    """Context manager that turns the errors of the database into psfleet's.

    Raises:
        StorageError: It is locked, or cannot be written.
        UsageError: The file is no database.
    """
    from sqlalchemy.exc import DBAPIError, OperationalError

    path = folder / DATABASE
    try:
        yield
    except (DBAPIError, optuna_module().exceptions.StorageInternalError) as error:
        cause = error if isinstance(error, DBAPIError) else error.__cause__
        reason = " ".join(str(getattr(cause, "orig", cause)).split())
        if isinstance(cause, DBAPIError) and not isinstance(cause, OperationalError):
            raise UsageError(f"{path}: {reason}, expected the storage of a study, or --fresh") from error
        raise StorageError(f"{path}: {reason}") from error


def opened(path: Path) -> Any:
    """Optuna's storage in a SQLite database, which may be new; not by a URL, in which not every path can be written."""
    optuna = optuna_module()
    connect = partial(sqlite3.connect, path.absolute(), timeout=LOCK_SECS, check_same_thread=False)
    return optuna.storages.get_storage(optuna.storages.RDBStorage(f"sqlite:///{DATABASE}", {"creator": connect}))
