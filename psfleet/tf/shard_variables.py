"""One shard's variables, accumulators and queues, as handles in the graph of the ps or of a worker.

TensorFlow finds resources by device, container and name. Handles that a ps and a worker build in graphs of their own
therefore refer to the same tensors; only the ps initializes them.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Collection, Sequence

import tensorflow as tf
import tensorflow.compat.v1 as v1

from psfleet.layout import Layout
from psfleet.layout.segments import Segment, segments
from psfleet.tf.optimizer_slots import OptimizerSlots
from psfleet.tf.shared_variable import SharedVariable
from psfleet.tf.token_queues import TokenQueues

STALENESS_BUCKETS = 65
"""Length of a worker's staleness histogram; the last entry counts gradients of its index or later."""


def container_name(run: str, generation: int) -> str:
    """The resource container of one generation of a run.

    TensorFlow accepts letters, digits, dots, dashes and slashes (ContainerInfo::Init in resource_mgr.cc).
    """
    return f"{run}/{generation}"


def worker_job(run: str, is_colocated: bool = False) -> str:
    """The TensorFlow job of a run's workers.

    A worker whose process is a ps, too, is a task of the job `ps`: what it sends to its own shard is not copied.

    A ps closes the sessions of a task (`/job:.../task:0`) when another process opens one under the same name. This
    removes the sessions of killed workers (SessionMgr::CreateSession), and so two runs need different job names.

    Args:
        is_colocated: `fleet.colocate` of the run's job.
    """
    return "ps" if is_colocated else f"worker_{hashlib.sha256(run.encode()).hexdigest()[:16]}"


def ps_device(shard: int) -> str:
    """The device of a shard in the graph of a worker: of the ps with its index, which may be a worker with GPUs."""
    return f"/job:ps/task:{shard}/device:CPU:0"


class ShardVariables:
    """Handles of the resources of one segment of a shard, which is all of the shard in most modes.

    Attributes:
        shard: Its index.
        scope: Begins the names of all resources.
        buckets: One float32 variable each.
        bucket_sizes: Elements in each bucket.
        bucket_losses: The index of each bucket's loss.
        previous: `exchanged` before the last update, if the constructor's `keeps_previous` is true; else empty.
        previous_state: `state` before the last update, in a list, under the same condition and if the shard has state.
        previous_words: `scalars` before the last update (`to_words`), in a list, under the same condition and if there
            are any.
        slots: Averaging mode: the optimizer's slots by name, one float32 variable for each bucket; else empty.
        scalars: Averaging mode: the optimizer's scalars by name; else empty.
        exchanged: All float32 vectors of a push: `buckets`, and after them those of `slots`.
        global_step: int64 scalar, the number of updates applied; in averaging mode of the local steps in them.
        started_step: int64 scalar, the global step after the newest update that has started to change parameters; equal
            to `global_step` while none is in progress. Only kept in sync mode.
        final_step: int64 scalar, the global step at which training ends.
        stop_step: int64 scalar, sync mode: each update makes it the `final_step` if it is still ahead; 0: none.
        last_local_step: int64 `[worker_limit]`, the local step of each worker's newest admitted gradient: the global
            step of the parameters that it was computed on; -1 before the first.
        last_number: int64 `[worker_limit]`, async mode: the highest number among those gradients of each worker that
            the ps has taken from the queue; -1 before the first.
        clocks: int64 `[worker_limit]`, ssp mode on ps 0: the steps that each worker has made; see `psfleet.tf.clocks`.
        pushed: int64 `[worker_limit]`, gradients received from each worker.
        used: int64 `[worker_limit]`, gradients of each worker that are part of an update.
        staleness: int64 `[worker_limit, STALENESS_BUCKETS]`, each worker's gradients by staleness in updates.
        waited_secs: float64 `[worker_limit]`, time from the arrival of each worker's gradients to the end of its wait.
        update_secs: float64 scalar, time of the optimizer's updates.
        state: uint8 `[state shard size]`, tensors that the forward pass changes, as of `global_step`; `[0]` in segments
            other than the first.
        state_ranges: The types of the elements of `state`; empty if there are none.
        frozen: uint8 `[frozen shard size]`, tensors that never change; `[0]` in segments other than the first.
        gradients: Gradients to apply. An element is a whole push: one tensor for each of `exchanged`, the new state
            (uint8, only if the shard has state), the stamp (int64 vector: local step, number, the scalars as words, and
            with tables the ticket of `stage_rows`) and the worker's index (int32).
        has_tables: Whether the model has embedding tables.
        waiting: Indices (int32) of workers that wait at a barrier: of the next update, or in ssp mode of the bound.
        registered: int64 `[worker_limit]`, async mode: how many waits of each worker have registered since the ps has
            last sent it tokens.
        tokens: Of the workers that wait at a barrier.
    """

    def __init__(
        self,
        layout: Layout,
        shard: int,
        worker_limit: int,
        container: str,
        device: str,
        keeps_previous: bool = False,
        slots: OptimizerSlots | None = None,
        segment: Segment | None = None,
    ) -> None:
        if segment is None:
            (segment,) = segments(layout.parameters, shard)
        self.worker_limit = worker_limit
        self.device = device
        self.container = container
        self.shard = shard
        self.has_tables = bool(layout.embeddings)
        self.scope = f"shard_{shard}" if segment.is_first else f"shard_{shard}_segment_{segment.index}"
        self.bucket_sizes = [bucket.size for bucket in segment.buckets]
        self.bucket_losses = [bucket.loss for bucket in segment.buckets]
        self.state_ranges = layout.state_ranges(shard) if segment.is_first else ()
        state_sizes = [layout.state.shard_size] if self.state_ranges else []
        self._all: list[SharedVariable] = []
        with tf.device(device), v1.container(container):
            self._make_exchanged(slots or OptimizerSlots(), keeps_previous)
            self.previous_state = [
                self._variable("previous_state", [units], tf.uint8) for units in (state_sizes if keeps_previous else [])
            ]
            self.global_step = self._variable("global_step", [], tf.int64)
            self.started_step = self._variable("started_step", [], tf.int64)
            self.final_step = self._variable("final_step", [], tf.int64)
            self.stop_step = self._variable("stop_step", [], tf.int64)
            self.last_local_step = self._variable("last_local_step", [worker_limit], tf.int64)
            self.last_number = self._variable("last_number", [worker_limit], tf.int64)
            self.clocks = self._variable("clocks", [worker_limit], tf.int64)
            self.registered = self._variable("registered", [worker_limit], tf.int64)
            self.pushed = self._variable("pushed", [worker_limit], tf.int64)
            self.used = self._variable("used", [worker_limit], tf.int64)
            self.staleness = self._variable("staleness", [worker_limit, STALENESS_BUCKETS], tf.int64)
            self.waited_secs = self._variable("waited_secs", [worker_limit], tf.float64)
            self.update_secs = self._variable("update_secs", [], tf.float64)
            self.state = self._variable("state", [layout.state.shard_size if segment.is_first else 0], tf.uint8)
            self.frozen = self._variable("frozen", [layout.frozen.shard_size if segment.is_first else 0], tf.uint8)
            self.gradients = tf.queue.FIFOQueue(
                worker_limit,
                [tf.float32] * len(self.exchanged) + [tf.uint8] * len(state_sizes) + [tf.int64, tf.int32],
                shapes=[each.shape for each in self.exchanged]
                + [(units,) for units in state_sizes]
                + [(2 + len(self.scalars) + self.has_tables,), ()],
                shared_name=f"{self.scope}/gradients",
            )
            self.waiting = tf.queue.FIFOQueue(-1, [tf.int32], shapes=[()], shared_name=f"{self.scope}/waiting")
            self.tokens = TokenQueues(worker_limit, self.scope, container)

    def _make_exchanged(self, slots: OptimizerSlots, keeps_previous: bool) -> None:
        """Buckets, slots and scalars, and what they were before the last update."""
        sizes = self.bucket_sizes
        self.buckets = self._vectors("bucket", sizes)
        self.slots = {name: self._vectors(f"slot_{name}", sizes) for name in slots.slots}
        pairs = zip(slots.scalars, slots.dtypes, strict=True)
        self.scalars = {name: self._variable(f"scalar_{name}", [], dtype) for name, dtype in pairs}
        self.exchanged = [*self.buckets, *itertools.chain(*self.slots.values())]
        self.previous = self._vectors("previous", sizes * (1 + len(self.slots))) if keeps_previous else []
        num_words = [len(self.scalars)] if keeps_previous and self.scalars else []
        self.previous_words = [self._variable("previous_words", [each], tf.int64) for each in num_words]

    def _vectors(self, name: str, sizes: Sequence[int]) -> list[SharedVariable]:
        return [self._variable(f"{name}_{index}", [size], tf.float32) for index, size in enumerate(sizes)]

    def zeros(self, restored: Collection[tf.Variable] = ()) -> tf.Operation:
        """Makes every variable zero that is not `restored`. Only the ps runs it: nothing else initializes them."""
        others = {id(variable) for variable in restored}
        zeros: dict[tuple[object, tf.DType], tf.Tensor] = {}
        with tf.device(self.device):
            assigned = []
            for variable in self._all:
                if id(variable) not in others:
                    key = tuple(variable.shape), variable.dtype
                    if key not in zeros:
                        zeros[key] = tf.zeros(variable.shape, variable.dtype)
                    assigned.append(variable.assign(zeros[key], read_value=False))
            return tf.group(*assigned)

    def initial_slots(self, slots: OptimizerSlots) -> tf.Operation:
        """Gives slots and scalars the values with which the optimizer starts. Only the ps runs it."""
        pairs: list[tuple[SharedVariable, object]] = [
            (self.scalars[name], slots.scalars[name]) for name in self.scalars
        ]
        for name, parts in self.slots.items():
            pairs += [(part, tf.fill(part.shape, slots.slots[name])) for part in parts]
        with tf.device(self.device):
            return tf.group(*[variable.assign(value, read_value=False) for variable, value in pairs])

    def progress(self) -> list[tf.Tensor]:
        """Reads the global step and then the final step: int64 scalars.

        An update to a step that it makes the final one sets the final step first.
        """
        global_step = self.global_step.read_value()
        with tf.control_dependencies([global_step]):
            return [global_step, self.final_step.read_value()]

    def accumulator(self, index: int) -> tf.compat.v1.ConditionalAccumulator:
        """The accumulator of one of `exchanged`, under the name that `SyncReplicasOptimizer` gives it."""
        variable = self.exchanged[index]
        with tf.device(self.device), v1.container(self.container):
            return v1.ConditionalAccumulator(
                tf.float32, shape=variable.shape, shared_name=f"{variable.name}/grad_accum"
            )

    def _variable(self, name: str, shape: list[int], dtype: tf.DType) -> SharedVariable:
        """A variable that is a handle and nothing else.

        `tf.compat.v1.get_variable` adds four operations of its own, which a worker never runs, to each: for two ps a
        quarter of a small step's graph.
        """
        name = f"{self.scope}/{name}"
        handle = tf.raw_ops.VarHandleOp(dtype=dtype, shape=shape, container=self.container, shared_name=name, name=name)
        variable = SharedVariable(
            handle=handle,
            handle_name=name,
            unique_id=name,
            shape=shape,
            dtype=dtype,
            trainable=False,
            in_graph_mode=True,
        )
        self._all.append(variable)
        return variable


def secs_since(started: tf.Tensor) -> tf.Tensor:
    """Seconds since a `tf.timestamp` (float64 scalar), to be added to a counter."""
    # `tf.timestamp` is the wall clock, which can be set back (tsl/platform/env_time.cc).
    return tf.maximum(tf.timestamp() - started, 0.0)
