"""psfleet trains Keras and TensorFlow models data-parallel on a fleet of parameter servers, workers and spares."""

__version__ = "0.1.0"

from psfleet.launch import train
from psfleet.program import GraphProgram, KerasProgram
from psfleet.report import Report

__all__ = ["GraphProgram", "KerasProgram", "Report", "__version__", "train"]
