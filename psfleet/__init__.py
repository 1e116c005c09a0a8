"""psfleet trains Keras and TensorFlow models data-parallel on a fleet of parameter servers, workers and spares."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from psfleet.callbacks import Callback
    from psfleet.errors import QueueClosedError
    from psfleet.handle import Run, attach, start
    from psfleet.job.program import GraphProgram, KerasProgram
    from psfleet.platforms import connect, train
    from psfleet.report.schema import Report
    from psfleet.tf.parts import part
    from psfleet.tf.variables import Variables

__version__ = "0.1.0"

__all__ = [
    "Callback",
    "GraphProgram",
    "KerasProgram",
    "QueueClosedError",
    "Report",
    "Run",
    "Variables",
    "__version__",
    "attach",
    "connect",
    "part",
    "start",
    "train",
]

_MODULES = {
    "Callback": "psfleet.callbacks",
    "GraphProgram": "psfleet.job.program",
    "KerasProgram": "psfleet.job.program",
    "QueueClosedError": "psfleet.errors",
    "Report": "psfleet.report.schema",
    "Run": "psfleet.handle",
    "Variables": "psfleet.tf.variables",
    "attach": "psfleet.handle",
    "connect": "psfleet.platforms",
    "part": "psfleet.tf.parts",
    "start": "psfleet.handle",
    "train": "psfleet.platforms",
}


def __getattr__(name: str) -> Any:
    """Imports a public name at its first use, because the frequent health check needs none of them."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    """The public names, those that are not imported yet included."""
    return __all__
