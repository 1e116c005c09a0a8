"""The exchange of a step by connections: operations that push tensors to the ps, and one that pulls the replies."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as v1
from tensorflow.python.ops import script_ops

from psfleet.exchange.buffers import BufferPool
from psfleet.exchange.message_layout import MessageLayout, TensorKind
from psfleet.job.job import Job
from psfleet.layout import FlatLayout, Layout
from psfleet.tf.ps_half import buckets_of, pushed_kinds
from psfleet.tf.state_wire import StateWire
from worker_service.connections import Connections
from worker_service.frontends.flat import elements
from worker_service.ps_peer import Messages
from worker_service.pulled import Pulled, split
from worker_service.push_pull import Exchange

_tokens = itertools.count()


class _ArrayFunction(script_ops.EagerFunc):
    """A function whose arrays TensorFlow takes as they are.

    Those of a plain function it converts, and parses NumPy's version for each, which takes 8 us (script_ops.py,
    `FuncRegistry._convert`).
    """

    def __init__(self, function: Callable[..., object]) -> None:
        self._function = function

    def __call__(self, device: object, token: object, args: Sequence[np.ndarray]) -> object:
        """Of the registry of TensorFlow's functions."""
        del device, token
        return self._function(*args)


class ConnectedSegment:
    """The tensors that travel between a worker and one segment of a shard.

    Args of the constructor:
        exchange: The same exchange by TensorFlow's servers.
        index: Of the worker.
        wire: Type of the buckets.
    """

    def __init__(self, layout: FlatLayout, exchange: Exchange, index: int, wire: tf.DType) -> None:
        self.shard, self.segment = exchange.variables.shard, exchange.segment
        self._layout = layout
        self._variables = exchange.variables
        self._wire = wire
        self._state_wire = StateWire(self._variables.state_ranges, index == 0, tf.uint8)

    def pushed_tensors(
        self,
        gradients: Sequence[tf.Tensor],
        stamp: tf.Tensor,
        state: tf.Tensor,
        slots: Sequence[tf.Tensor],
        loss: int,
    ) -> list[tf.Tensor]:
        """What a push consists of, one after the other; arguments as of `Exchange.push`.

        A bucket is several tensors, with zeros for its gaps: nothing copies them into one.
        """
        own = buckets_of(self.segment, loss)
        parts = [part for bucket in own for part in elements(self._layout, gradients, bucket)]
        of_slots = [slot[bucket.start : bucket.stop] for slot in slots for bucket in own]
        return [stamp, *self._state_wire.push(state), *[tf.cast(part, self._wire) for part in parts], *of_slots]

    @property
    def losses(self) -> range:
        """Those of the job."""
        return range(max(1, len(self._layout.losses)))

    def pushed(self, loss: int) -> list[TensorKind]:
        """What the ps takes a push for."""
        return pushed_kinds(self._variables, buckets_of(self.segment, loss), self._state_wire, self._wire)

    @property
    def reply(self) -> list[TensorKind]:
        """What the reply of the ps consists of: numbers, averages of state, buckets, and slots."""
        sizes, number = self._variables.bucket_sizes, len(self._variables.slots)
        wire = np.dtype(self._wire.as_numpy_dtype)
        return [
            TensorKind(np.dtype(np.int64), 2 + len(self._variables.scalars)),
            *[TensorKind(np.dtype(np.uint8), size) for size in self._state_wire.pull_sizes],
            *[TensorKind(wire, size) for size in sizes],
            *[TensorKind(np.dtype(np.float32), size) for size in sizes * number],
        ]

    def pulled(self, tensors: Sequence[tf.Tensor], own_state: tf.Tensor) -> Pulled:
        """What the worker keeps of a reply.

        Args:
            tensors: As `reply` lists them.
            own_state: uint8 `[state shard size]`, which it keeps but for the averages.
        """
        numbers, *rest = tensors
        averages = [rest.pop(0) for _ in self._state_wire.pull_sizes]
        states, _ = self._state_wire.pulled(averages[0] if averages else tf.zeros([0], tf.uint8), own_state)
        buckets, slots = split([tf.cast(value, tf.float32) for value in rest], len(self._variables.buckets))
        return Pulled(numbers[:2], buckets, states[0] if states else own_state, slots, numbers[2:])


class ConnectedExchanges:
    """The exchanges with all ps that are other processes.

    Args of the constructor:
        index: Of the worker.
        exchanges: By shard and segment, those by TensorFlow's servers.
        connections: Of the worker.
        session: int64 scalar, the number of `Connections.open`.
        own_device: The worker's.
    """

    def __init__(
        self,
        job: Job,
        layout: Layout,
        index: int,
        exchanges: Sequence[Sequence[Exchange]],
        connections: Connections,
        session: tf.Tensor,
        own_device: str,
    ) -> None:
        wire = tf.dtypes.as_dtype(job.update.wire)
        self._connections = connections
        self._session = session
        # The functions of operations are NumPy's.
        self._device = f"{own_device}/device:CPU:0"
        own_shard = index if job.fleet.colocate else None
        # By ps and segment.
        self._segments: list[ConnectedSegment] = []
        for shard, of_shard in enumerate(exchanges):
            if shard != own_shard:
                own = [ConnectedSegment(layout.parameters, each, index, wire) for each in of_shard]
                connections.expect(shard, self._messages(own))
                self._segments += own
        # TensorFlow's registry keeps weak references.
        self._functions: list[_ArrayFunction] = []

    @staticmethod
    def _messages(of_shard: Sequence[ConnectedSegment]) -> Messages:
        """Those between this worker and a ps."""
        pushes = {
            (each.segment.index, loss): MessageLayout(each.pushed(loss)) for each in of_shard for loss in each.losses
        }
        return Messages(pushes, [BufferPool(each.reply) for each in of_shard])

    def push_and_pull(
        self,
        gradients: Sequence[tf.Tensor],
        stamps: Sequence[tf.Tensor],
        states: Sequence[tf.Tensor],
        slots: Sequence[tf.Tensor] = (),
        loss: int = 0,
    ) -> dict[int, list[Pulled]]:
        """Pushes a gradient to all segments of these ps, and pulls; by ps and segment.

        The last segment of a ps is pushed first, as gradients of the last layers are known first.

        Args:
            gradients, slots, loss: As of `Exchange.push`.
            stamps, states: As of `Exchange.push`, by ps.
        """
        if not self._segments:
            return {}
        with tf.device(self._device):
            no_state = tf.zeros([0], tf.uint8)
            own = {each: states[each.shard] if each.segment.is_first else no_state for each in self._segments}
            pushed = [
                each.pushed_tensors(gradients, stamps[each.shard], own[each], slots, loss) for each in self._segments
            ]
            received = self._exchanged(pushed, loss)
            found: dict[int, list[Pulled]] = {each.shard: [] for each in self._segments}
            for each in self._segments:
                reply = [tf.ensure_shape(received.pop(0), [kind.size]) for kind in each.reply]
                found[each.shard].append(each.pulled(reply, own[each]))
        return found

    def _exchanged(self, pushed: Sequence[Sequence[tf.Tensor]], loss: int) -> list[tf.Tensor]:
        """The tensors of all replies, by ps and segment.

        Args:
            pushed: The tensors of each push, in the same order.
        """
        connections, session = self._connections, self._session
        types = [tf.dtypes.as_dtype(kind.dtype) for each in self._segments for kind in each.reply]
        if len(self._segments) == 1:
            shard = self._segments[0].shard
            return self._call(
                lambda number, *arrays: connections.exchange(int(number), shard, loss, arrays),
                [session, *pushed[0]],
                types,
            )
        started: dict[int, tf.Operation] = {}
        for each, tensors in reversed(list(zip(self._segments, pushed, strict=True))):
            with tf.control_dependencies([started[each.shard]] if each.shard in started else []):
                started[each.shard] = self._started(each, loss, tensors)
        with tf.control_dependencies(list(started.values())):
            return self._call(lambda number: connections.finish(int(number)), [tf.identity(session)], types)

    def _started(self, each: ConnectedSegment, loss: int, pushed: Sequence[tf.Tensor]) -> tf.Operation:
        shard, segment = each.shard, each.segment.index

        def start(number: np.int64, *arrays: np.ndarray) -> list[np.ndarray]:
            self._connections.start(int(number), shard, segment, loss, arrays)
            return [np.zeros([], np.int32)]

        (done,) = self._call(start, [self._session, *pushed], [tf.int32])
        return done.op

    def _call(
        self, function: Callable[..., object], inputs: Sequence[tf.Tensor], types: Sequence[tf.DType]
    ) -> list[tf.Tensor]:
        """An operation that calls a function of this process with arrays; it returns a list of arrays."""
        token = f"psfleet_exchange_{next(_tokens)}"
        registered = _ArrayFunction(function)
        script_ops._py_funcs._funcs[token] = registered
        self._functions.append(registered)
        return list(v1.raw_ops.PyFunc(input=list(inputs), token=token, Tout=list(types)))
