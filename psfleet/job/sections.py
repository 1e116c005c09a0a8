"""The job file's sections that have no module of their own."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from psfleet.job import store_url
from psfleet.job.fields import NonNegativeInt, Positive, PositiveInt, Real, Section
from psfleet.job.gpus import Replicas, VisibleGpus
from psfleet.job.monitored import Best, Stop


class Train(Section):
    """Number of steps, and batches."""

    steps: PositiveInt = Field(description="Final step: number of updates after which the run is done.")
    batch_size: PositiveInt = Field(description="Number of examples in one worker's batch.")
    accumulate: PositiveInt = Field(
        1,
        description="Number of batches in one gradient: a worker pushes the mean of their gradients, with the memory "
        "of one of `batch_size`. For a loss that is the mean of examples of equal weight, that is the gradient of one "
        "batch of `batch_size` * `accumulate` examples; other losses (sums, masked and weighted means) are averaged "
        "over the batches, as by `gradient_accumulation_steps` of Keras.",
    )
    alternate: list[str] | None = Field(
        None,
        min_length=1,
        description="For a program with several losses, where it is required: the losses of consecutive steps, from "
        "step 1 and again from the beginning; each loss at least once, and any of them repeatedly.",
    )
    shuffle: NonNegativeInt = Field(0, description="Size of the shuffle buffer in examples; 0: no shuffling.")
    seed: int = Field(0, ge=0, lt=2**32, description="Random seed of initial weights, shuffling and dropout.")

    @property
    def gradient_examples(self) -> int:
        """Number of examples in one gradient."""
        return self.batch_size * self.accumulate


class Evaluate(Section):
    """When the chief evaluates the model; it always does at the end if the program has evaluation data."""

    every_steps: PositiveInt | None = Field(None, description="Steps between evaluations; null: only at the end.")
    batch_size: PositiveInt | None = Field(
        None, description="Number of examples in an evaluation batch; null: `train.batch_size`."
    )
    stop: Stop | None = Field(None, description="Ends training when a metric has stopped improving; null: never.")


class Checkpoint(Section):
    """When checkpoints are written, and how many are kept."""

    every_steps: PositiveInt | None = Field(
        None, description="Steps between checkpoints; null: no checkpoints by step."
    )
    every_secs: Positive | None = Field(None, description="Seconds between checkpoints; null: no checkpoints by time.")
    keep: PositiveInt = Field(5, description="Number of newest checkpoints that are kept.")
    shared: bool = Field(
        False,
        description="Whether each ps writes its part of a checkpoint into the run's folder, on a volume that all "
        "containers mount; false: a ps needs no volume, and the chief fetches the parts over the control plane. "
        "Processes of one machine share its disk in any case.",
    )
    store: Annotated[str, AfterValidator(store_url.checked)] | None = Field(
        None,
        description="URL of an object store for the checkpoints, `s3://BUCKET/PREFIX` (also `gs://` and `az://`), a "
        "prefix of this run alone: every ps reads and writes its own part there, and the chief the manifest. Needs the "
        "extra `psfleet[s3]` (`gs`, `az`), and credentials in the environment; null: checkpoints are in the run's "
        "folder.",
    )
    best: Best | None = Field(
        None, description="Keeps the checkpoint with the best evaluation, too; null: only the newest ones are kept."
    )

    @model_validator(mode="after")
    def _consistent(self) -> Checkpoint:
        if self.store is not None and self.shared:
            raise ValueError("shared is true, expected false with store: no checkpoint is in the run's folder")
        return self


class Summaries(Section):
    """What is written to `tensorboard/`."""

    every_steps: PositiveInt = Field(
        20,
        description="Steps between scalar summaries, in averaging mode rounded up to a multiple of "
        "`update.local_steps`; training metrics are over the steps of a whole such interval.",
    )
    graph: bool = Field(
        False,
        description="Whether the chief's training graph is written for TensorBoard's Graphs tab, when the chief starts "
        "to train; a graph of more than 16 MiB is not.",
    )
    histograms: bool = Field(False, description="Whether histograms of the weights are written at each evaluation.")
    gradient_histograms: bool = Field(
        False,
        description="Whether histograms of the chief's own gradient, before clipping, are written with the scalars.",
    )


class Device(Section):
    """Threads and accelerators of each process.

    On x86-64 TensorFlow computes with oneDNN, unless the environment variable `TF_ENABLE_ONEDNN_OPTS` is 0: that of
    the command if processes run on this machine, in `kubernetes.env`, or of an image made from psfleet's for Docker
    Compose. A client of a standing fleet needs the fleet's value.
    """

    intra_op_threads: NonNegativeInt | None = Field(
        None,
        description="Threads within one operation; 0: TensorFlow's default, one per core; null: with `psfleet train` "
        "the available cores divided by the number of workers, at least 1; in a container with a CPU limit "
        "(`container.ps.cpus`, `container.worker.cpus`) that limit, rounded up; otherwise as 0.",
    )
    inter_op_threads: NonNegativeInt | None = Field(
        None,
        description="Operations that run in parallel; 0 and null: as for `intra_op_threads`. With `fleet.colocate` at "
        "least 2.",
    )
    visible_gpus: VisibleGpus = Field(
        default_factory=VisibleGpus, description="Which GPUs each process uses; a ps never sees one."
    )
    replicas: Replicas = Field(
        1,
        description="Number of devices over which each worker divides its batch, its "
        "[towers](job-file.md#several-devices-in-one-worker). auto: all its GPUs, or with `virtual_cpus` all those; "
        "1 without either. `train.batch_size` must be a multiple of it.",
    )
    virtual_cpus: PositiveInt | None = Field(
        None,
        description="Number of CPU devices of each worker, on which towers are tried without GPUs: they share the "
        "cores, and do not make a step faster. Towers are on these devices and not on GPUs; null: one CPU device.",
    )
    gpu_memory_fraction: Annotated[Real, Field(gt=0, le=1)] | None = Field(
        None, description="Fraction of a GPU's memory that a worker allocates; null: all of it."
    )
    gpu_memory_growth: bool = Field(
        False, description="Whether GPU memory is allocated as needed instead of all at start."
    )
    soft_placement: bool = Field(
        True, description="Whether an operation without a kernel for its device is placed on the CPU."
    )
    log_placement: bool = Field(
        False,
        description="Whether the device of each operation is logged; `psfleet logs JOB --placement` prints a table.",
    )


class Deadlines(Section):
    """Timeouts; the error of an expired one names what was waited for."""

    start_secs: Positive = Field(180, description="Timeout for all ps to respond, and for each to build its shard.")
    step_secs: Positive = Field(
        60,
        description="Timeout of a worker's TensorFlow session: of opening it, and of one step (push, token, pull), "
        "and `update.local_steps` times that for the wait for an average; after it the worker queries the state of the "
        "fleet. A worker ends with 75 and is started again if the operations of a step, of each microbatch with "
        "`train.accumulate`, have not returned after twice this time and 30 s.",
    )
    slow_secs: Positive = Field(
        5, description="A step that waits this long is logged, with the workers that it waits for."
    )
    stall_secs: Positive = Field(
        600,
        description="The run fails if no step completes in the fleet for this long, and names the worker if that is "
        "because a data set gives no batch.",
    )
    first_batch_secs: Positive = Field(
        1800,
        description="Replaces `stall_secs`, if it is longer, while a worker that has just started, or starts again at "
        "another step, waits for its first batch, or a worker for that of its next data shard or shuffled epoch: data "
        "sets are built, files opened and shuffle buffers filled. An evaluation may take as long.",
    )
    stop_secs: Positive = Field(60, description="Grace period from Ctrl-C or SIGTERM until the processes are killed.")

    @property
    def first_secs(self) -> float:
        """Deadline of a worker's first batch: `first_batch_secs`, or `stall_secs` if that is longer."""
        return max(self.first_batch_secs, self.stall_secs)
