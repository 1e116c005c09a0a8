"""Makes handles to one shard's variables, accumulators and queues, on the ps itself or from a worker.

Resources are found by device, container and name. A ps and a worker that build these handles in their own graphs
therefore speak of the same tensors; only the ps initializes them.
"""

from __future__ import annotations

import hashlib

import tensorflow as tf
import tensorflow.compat.v1 as v1

from psfleet.layout import Layout, contributor_mask_size

STALENESS_BUCKETS = 65
"""Length of a worker's staleness histogram; the last entry counts all that is as late or later."""


def container_name(run: str, generation: int) -> str:
    """The resource container of one generation of a run.

    TensorFlow takes letters, digits, dots, dashes and slashes (ContainerInfo::Init in resource_mgr.cc).
    """
    return f"{run}/{generation}"


def worker_job(run: str) -> str:
    """The TensorFlow job of a run's workers.

    A ps drops the sessions of a task (`/job:.../task:0`) when another process opens one under the same name: that is
    how it forgets a worker that was killed (SessionMgr::CreateSession), and so the workers of two runs must differ.
    """
    return f"worker_{hashlib.sha256(run.encode()).hexdigest()[:16]}"


class ShardVariables:
    """Handles to what one ps holds.

    Attributes:
        buckets: One float32 variable `[bucket_size]` each. The first is longer by `contributor_mask_size`: this tail of its
            gradient is the roll call, a one at the worker's own index, from which the ps learns whose gradients made
            an average.
        global_step: int64 scalar, the number of updates applied.
        target: int64 scalar, the global_step at which training ends.
        last_local_step: int64 `[worker_limit]`, the global_step on which each worker's newest gradient was computed.
        pushed: int64 `[worker_limit]`, gradients that came from each worker.
        used: int64 `[worker_limit]`, gradients of each worker that are part of an update.
        staleness: int64 `[worker_limit, STALENESS_BUCKETS]`, how many updates late gradients came.
        waited_secs: float64 `[worker_limit]`, how long each worker's gradients lay here until the worker was let go on.
        update_secs: float64 scalar, the time that the optimizer took for all updates.
        state: uint8 `[state shard size]`, what the forward pass changes; the chief writes it.
        frozen: uint8 `[frozen shard size]`, weights that nothing changes.
        tokens: A queue of at most one token for each worker: "look at the global_step again".
    """

    def __init__(self, layout: Layout, shard: int, worker_limit: int, container: str, device: str) -> None:
        self.worker_limit = worker_limit
        self.contributor_mask_size = contributor_mask_size(worker_limit)
        self.device = device
        self.container = container
        self._scope = f"shard_{shard}"
        size = layout.parameters.bucket_size
        self.bucket_sizes = [size] * layout.parameters.buckets_per_shard
        with tf.device(device), v1.container(container), v1.variable_scope(self._scope, reuse=v1.AUTO_REUSE):
            self.buckets = [
                _variable(f"bucket_{index}", [units + (self.contributor_mask_size if index == 0 else 0)], tf.float32)
                for index, units in enumerate(self.bucket_sizes)
            ]
            self.global_step = _variable("global_step", [], tf.int64)
            self.final_step = _variable("final_step", [], tf.int64)
            self.last_local_step = _variable("last_local_step", [worker_limit], tf.int64)
            self.pushed = _variable("pushed", [worker_limit], tf.int64)
            self.used = _variable("used", [worker_limit], tf.int64)
            self.staleness = _variable("staleness", [worker_limit, STALENESS_BUCKETS], tf.int64)
            self.waited_secs = _variable("waited_secs", [worker_limit], tf.float64)
            self.update_secs = _variable("update_secs", [], tf.float64)
            self.state = _variable("state", [layout.state.shard_size], tf.uint8)
            self.frozen = _variable("frozen", [layout.frozen.shard_size], tf.uint8)
            self.tokens = [
                tf.queue.FIFOQueue(1, [tf.int64], shapes=[()], shared_name=f"{self._scope}/token_{worker}")
                for worker in range(worker_limit)
            ]

    def accumulator(self, bucket: int) -> tf.compat.v1.ConditionalAccumulator:
        """The accumulator that `SyncReplicasOptimizer` makes for a bucket, by the name that it gives it."""
        variable = self.buckets[bucket]
        with tf.device(self.device), v1.container(self.container):
            return v1.ConditionalAccumulator(
                tf.float32, shape=variable.shape, shared_name=f"{variable.name}/grad_accum"
            )

    def gradient_queue(self) -> tf.queue.FIFOQueue:
        """Async mode: gradients that wait to be applied: every bucket's, the local_step, the worker's index."""
        with tf.device(self.device), v1.container(self.container):
            return tf.queue.FIFOQueue(
                self.worker_limit,
                [tf.float32] * len(self.buckets) + [tf.int64, tf.int32],
                shapes=[variable.shape for variable in self.buckets] + [(), ()],
                shared_name=f"{self._scope}/gradients",
            )


def _variable(name: str, shape: list[int], dtype: tf.DType) -> tf.Variable:
    return v1.get_variable(
        name, shape, dtype, initializer=v1.zeros_initializer(), trainable=False, use_resource=True, collections=[]
    )
