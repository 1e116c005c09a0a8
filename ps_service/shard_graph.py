"""One shard as a TensorFlow graph on this ps: restore, update, snapshot."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as v1

from ps_service import optimizer_state
from ps_service.base_rate import BaseRate
from ps_service.container_handles import ContainerHandles
from ps_service.segment_variables import numbers_of, segment_variables
from ps_service.shard_plan import ShardPlan
from ps_service.snapshot import Snapshot
from ps_service.tables.shard_tables import REGISTRY, ShardTables
from ps_service.updates.building import updates_of
from ps_service.updates.final_step import FinalStep, last_step
from ps_service.updates.per_loss import variables_of
from psfleet.checkpoint.parts import ShardContent
from psfleet.job.sections import Device
from psfleet.layout import Layout
from psfleet.tf import container_name
from psfleet.tf.optimizer_slots import exchanged_slots
from psfleet.tf.own_session import OwnSession, unoptimized


@dataclass(frozen=True)
class Counters:
    """Counts of a generation; see `ShardVariables`.

    Attributes:
        pushed, used: int64 `[worker_limit]`.
        staleness: int64 `[worker_limit, STALENESS_BUCKETS]`.
        waited_secs: float64 `[worker_limit]`.
        update_secs: float64 scalar.
    """

    pushed: np.ndarray
    used: np.ndarray
    staleness: np.ndarray
    waited_secs: np.ndarray
    update_secs: np.ndarray


class ShardGraph:
    """The variables of one shard and the operations on them, in a session on this process's own server.

    Args of the constructor:
        session_target: Address of this process's TensorFlow server, `grpc://host:port`.
        start_step: Global step of the content.
        content: To restore.
    """

    def __init__(self, session_target: str, plan: ShardPlan, start_step: int, content: ShardContent) -> None:
        job, container = plan.job, container_name(plan.run, plan.generation)
        self._session_target = session_target
        self._tables = ShardTables(plan, start_step, content.tables)
        self._num_pushing = job.fleet.replicas if job.fleet.parts > 1 else job.fleet.worker_limit
        # cond_v2 would build the optimizer in a graph of its own, where it cannot find its slots.
        v1.disable_control_flow_v2()
        # A ps in a worker's process can see its GPUs.
        with tf.Graph().as_default() as graph, tf.device("/device:CPU:0"):
            exchanged = exchanged_slots(job, plan.update)
            self._segments = segment_variables(plan, container, exchanged)
            self._variables = variables = self._segments[0]
            self._buckets = [bucket for segment in self._segments for bucket in segment.buckets]
            self.base_rate = BaseRate(job, variables)
            self.updates = updates_of(plan, self._segments, self.base_rate)
            with v1.container(container):
                made = [
                    variables_of(optimizer, segment.buckets)
                    for optimizer, segment in zip(self.updates.optimizers, self._segments, strict=True)
                ]
                of_optimizer = v1.variables_initializer([variable for each in made for variable in each.all])
            joined = {name: [slot for each in made for slot in each.slots[name]] for name in made[0].slots}
            self._slots = {**joined, **variables.slots}
            # Each segment has its own, with the same values after each step.
            self._scalars = {name: [each.scalars[name] for each in made] for name in made[0].scalars}
            self._scalars |= {name: [scalar] for name, scalar in variables.scalars.items()}
            restored = self._restored_variables()
            zeros = [segment.zeros(restored) for segment in self._segments]
            initializer = tf.group(*zeros, variables.initial_slots(exchanged), of_optimizer)
            self._feeds = {v.name: v1.placeholder(v.dtype, v.shape) for v in restored}
            self._assigns = {v.name: v.assign(self._feeds[v.name], read_value=False) for v in restored}
            self._initial = {name: [part.read_value() for part in parts] for name, parts in self._slots.items()}
            scalars = {name: copies[0] for name, copies in self._scalars.items()}
            self._snapshot = Snapshot(self._segments, self._slots, scalars)
            newest = [segment.last_local_step.read_value() for segment in self._segments]
            self._local_steps = tf.reduce_min(tf.stack(newest), 0)
            self._final_step = FinalStep(variables, has_quorum=job.update.has_quorum)
            self._counters = self._counter_reads()
        # No call may add an operation: TensorFlow would prepare the graph anew, and never free what it had.
        graph.finalize()
        self._graph = graph
        self._container = container
        self._session = OwnSession(session_target, graph=graph, config=_session_config(job.device))
        try:
            self._session.run(initializer)
            self.base_rate.start(self._session)
            self._restore(plan, start_step, content)
            REGISTRY.add(self._tables)
            self.updates.start(self._session)
            self._snapshot.start(self._session)
        except BaseException:
            # A shared ps would keep the variables for as long as it lives.
            with suppress(tf.errors.OpError):
                self.close()
            raise

    def take_snapshot(self) -> None:
        """Copies, within TensorFlow, everything that a checkpoint holds; see `Snapshot`."""
        self._snapshot.take()
        self._tables.take_snapshot()

    def read_snapshot(self) -> ShardContent:
        """The copy that `take_snapshot` made, which is released; from any thread, while updates continue."""
        content = self._snapshot.read(self._session)
        return replace(content, tables=self._tables.read_snapshot())

    def counters(self) -> Counters:
        """Counts since the generation started; `pushed` is read before the others."""
        return Counters(*self._session.run(self._counters))

    def local_steps(self) -> list[int]:
        """By worker, the local step of its newest gradient; -1 before the first. Without parts that push none."""
        local_steps: list[int] = self._session.run(self._local_steps).tolist()
        return local_steps[: self._num_pushing]

    @property
    def slot_names(self) -> list[str]:
        """Names of the optimizer's slots."""
        return sorted(self._slots)

    @property
    def model_bytes(self) -> int:
        """Bytes of the model on this ps: buckets, state and frozen weights, and rows of tables that were updated."""
        variables = self._variables
        others = int(variables.state.shape[0]) + int(variables.frozen.shape[0])
        return self._num_parameters * 4 + others + self._tables.row_bytes

    @property
    def optimizer_bytes(self) -> int:
        """Bytes of the optimizer's slots on this ps."""
        return len(self._slots) * self._num_parameters * 4 + self._tables.slot_bytes

    def set_final_step(self, step: int) -> bool:
        """Sets the global step at which workers end training; False if that is too late. See `FinalStep.set`."""
        return self._final_step.set(self._session, step)

    def raise_final_step(self, step: int) -> bool:
        """Has workers train on to a later step; False if that failed. See `FinalStep.raise_to`."""
        return self._final_step.raise_to(self._session, step)

    def close(self) -> None:
        """Ends the wait of every worker and of this ps's update loop with an error, and destroys the resources."""
        REGISTRY.remove(self._tables)
        # Made now: a ps that serves one run ends without it.
        handles = ContainerHandles(self._graph, self._container)
        with OwnSession(self._session_target, graph=handles.graph, config=unoptimized()) as session:
            session.run(handles.close_queues)
            self._session.close()
            session.run(handles.destroy)

    @property
    def _num_parameters(self) -> int:
        """Elements of all buckets."""
        return sum(int(bucket.shape[0]) for bucket in self._buckets)

    def _restored_variables(self) -> list[tf.Variable]:
        numbers = [variable for segment in self._segments for variable in numbers_of(segment)]
        others = itertools.chain(*self._slots.values(), *self._scalars.values())
        return [*self._buckets, *numbers, self._variables.state, self._variables.frozen, *others]

    def _counter_reads(self) -> list[tf.Tensor]:
        """In the order of `Counters`; reads `pushed` first: a gradient counted meanwhile never looks dropped.

        Gradients are counted in the first segment, which a worker pushes last.
        """
        variables = self._variables
        pushed = variables.pushed.read_value()
        with tf.control_dependencies([pushed]):
            counts = [variables.used, variables.staleness, variables.waited_secs]
            update_secs = tf.add_n([segment.update_secs.read_value() for segment in self._segments])
            return [pushed, *[variable.read_value() for variable in counts], update_secs]

    def _restore(self, plan: ShardPlan, start_step: int, content: ShardContent) -> None:
        """Assigns a checkpoint's values to the variables.

        Only elements of tensors are set. The gaps between tensors keep the optimizer's initial values: Adagrad would
        divide by a zero in its accumulator.

        All but the slots are assigned in one call: TensorFlow prepares the graph anew for each set of operations.
        """
        names = [*self._slots, *self._scalars]
        content = optimizer_state.restorable(content, plan.optimizer, plan.run, names)
        variables, in_use = self._variables, _in_use(plan.layout, plan.shard)
        step, never = np.int64(start_step), np.full(variables.worker_limit, -1, np.int64)
        end = np.int64(last_step(plan.job.train.steps, plan.hold_at))
        numbers: list[np.ndarray | np.generic] = [step, step, end, never, never, never]
        self._assign(
            [
                *zip(self._buckets, self._parts(np.where(in_use, content.parameters, np.float32(0))), strict=True),
                *[(copy, scalar) for name, scalar in content.scalars.items() for copy in self._scalars[name]],
                (variables.state, content.state),
                (variables.frozen, content.frozen),
                *[pair for segment in self._segments for pair in zip(numbers_of(segment), numbers, strict=True)],
            ]
        )
        for name, vector in content.slots.items():
            initial = np.concatenate(self._session.run(self._initial[name]))
            self._assign(zip(self._slots[name], self._parts(np.where(in_use, vector, initial)), strict=True))

    def _parts(self, vector: np.ndarray) -> list[np.ndarray]:
        """A vector of the shard, cut into its buckets."""
        return np.split(vector, np.cumsum([int(bucket.shape[0]) for bucket in self._buckets])[:-1])

    def _assign(self, values: Iterable[tuple[tf.Variable, np.ndarray | np.generic]]) -> None:
        """Assigns values to variables in one call."""
        feeds = {variable.name: value for variable, value in values}
        self._session.run(
            [self._assigns[name] for name in feeds], {self._feeds[name]: value for name, value in feeds.items()}
        )


def _session_config(device: Device) -> v1.ConfigProto:
    """The configuration of the session that applies the updates."""
    config = unoptimized()
    config.allow_soft_placement = device.soft_placement
    config.log_device_placement = device.log_placement
    return config


def _in_use(layout: Layout, shard: int) -> np.ndarray:
    """Which elements of a shard belong to a tensor: bool `[shard_size]`."""
    mask = np.zeros(layout.parameters.shard_size, bool)
    for piece in layout.parameters.pieces(shard):
        mask[piece.at : piece.at + piece.stop - piece.start] = True
    return mask
