"""The two kinds of training programs, behind one interface."""

from __future__ import annotations

import tensorflow as tf

from psfleet.checkpoint.parts import DTYPES
from psfleet.errors import ProgramError
from psfleet.job.job import Job
from psfleet.job.program import GraphProgram, KerasProgram
from psfleet.tf.parts import building
from worker_service.frontends.graph import GraphFrontEnd
from worker_service.frontends.interface import FrontEnd, TrainingGraph, planned
from worker_service.frontends.keras import KerasFrontEnd

__all__ = ["FrontEnd", "TrainingGraph", "front_end", "planned"]


def front_end(program: KerasProgram | GraphProgram, job: Job, num_shards: int, index: int) -> FrontEnd:
    """The front end of a program for worker `index`, whose data are shard `index % num_shards` of `num_shards`.

    Raises:
        ProgramError: The program raised, has no trainable parameters, or does something that a worker cannot do.
    """
    if not tf.executing_eagerly():
        raise ProgramError(
            f"program {job.program!r} turns eager execution off, expected no disable_v2_behavior() and no "
            "disable_eager_execution(): psfleet builds the loss of a GraphProgram in a graph by itself"
        )
    front: FrontEnd
    with building(job.fleet.parts) as parts:
        if isinstance(program, KerasProgram):
            front = KerasFrontEnd(program, job, num_shards, index)
        else:
            front = GraphFrontEnd(program, job, num_shards, index)
    parts.require_all_used(job.program)
    for spec in (*front.state, *front.frozen):
        if spec.dtype not in DTYPES:
            raise ProgramError(
                f"program {job.program!r}: variable {spec.name} is {spec.dtype}, which no checkpoint can hold; "
                f"expected one of {', '.join(DTYPES)}"
            )
    return front
