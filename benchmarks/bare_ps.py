"""One process of the contender `bare`: the least that a parameter server must do, without an RPC library.

The gradient is TensorFlow's, and so is the update. In between, each worker copies its gradient into memory that it
shares with the owner of a shard, and the owner copies the parameters into memory of each worker. Nothing is counted,
checked or recovered, and phases of a step do not overlap.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import tensorflow as tf

from benchmarks.array_links import CONNECT_SECS, SharedLink, accepted, connected
from benchmarks.parent_pipe import ParentPipe
from benchmarks.timing import time_steps
from benchmarks.training_graph import fed_loss, new_optimizer
from benchmarks.workload import NUM_WORKERS, Workload
from psfleet.addresses import Address
from psfleet.layout import FlatLayout, TensorSpec
from psfleet.service.cpu import num_cores, threads_each

Arrays = list[np.ndarray]


class Owner:
    """The owner of a shard: averages the gradients of all workers, updates, and sends the parameters.

    Args of the constructor:
        links: To the workers that are not in this process.
    """

    def __init__(self, workload: Workload, layout: FlatLayout, shard: int, links: Sequence[SharedLink]) -> None:
        self._links = links
        self._first = shard * layout.shard_size
        self._pool = ThreadPoolExecutor(max(1, len(links)))
        with tf.Graph().as_default():
            gradients = [tf.compat.v1.placeholder(tf.float32, [layout.shard_size]) for _ in range(NUM_WORKERS)]
            variable = tf.compat.v1.get_variable("shard", initializer=initial(layout, shard))
            average = tf.add_n(gradients) / NUM_WORKERS
            update = new_optimizer(workload).apply_gradients([(average, variable)])
            with tf.control_dependencies([update]):
                updated = variable.read_value()
            self._session = new_session()
            self._update = self._session.make_callable(updated, gradients)

    def step(self, own: Sequence[np.ndarray] = ()) -> np.ndarray:
        """One step: the parameters after it, `[shard_size]`.

        Args:
            own: The gradient of the worker in this process.
        """
        received = list(self._pool.map(SharedLink.wait, self._links))
        parameters: np.ndarray = self._update(*own, *received)
        list(self._pool.map(lambda link: link.send([parameters], self._first), self._links))
        return parameters


class Worker:
    """A worker's gradients, in the order of the layout, and its parameters, which each step feeds."""

    def __init__(self, workload: Workload, index: int, num_shards: int) -> None:
        # The values of these variables can be fed, those of resource variables cannot.
        with tf.Graph().as_default(), tf.compat.v1.variable_scope("worker", use_resource=False):
            loss, self._feed = fed_loss(workload, index)
            variables = tf.compat.v1.trainable_variables()
            specs = [TensorSpec(each.op.name, tuple(each.shape.as_list())) for each in variables]
            self.layout = FlatLayout(tuple(specs), num_shards)
            batch = list(self._feed(0))
            gradients = tf.gradients(loss, variables)
            self._session = new_session()
            self._gradients = self._session.make_callable(gradients, [*batch, *(each.value() for each in variables)])
        self.keep_in(np.concatenate([initial(self.layout, shard) for shard in range(num_shards)]))

    def keep_in(self, parameters: np.ndarray) -> None:
        """Takes an array for its parameters, float32 `[size of the layout]`."""
        self.parameters = parameters
        self._tensors = [
            self.parameters[offset : offset + spec.size].reshape(spec.shape)
            for spec, offset in zip(self.layout.specs, self.layout.offsets, strict=True)
        ]

    def link(self, connection: socket.socket) -> SharedLink:
        """With an owner, which fills the parameters of this worker."""
        made = SharedLink(connection, self.layout.size)
        made.array[:] = self.parameters
        self.keep_in(made.array)
        return made

    def gradient(self, step: int) -> list[Arrays]:
        """The gradient of a batch: for each shard, the arrays that it consists of."""
        found = [each.reshape(-1) for each in self._gradients(*self._feed(step).values(), *self._tensors)]
        flat = dict(zip((spec.name for spec in self.layout.specs), found, strict=True))
        shards = []
        for shard in range(self.layout.num_shards):
            arrays, at = [], 0
            for piece in self.layout.pieces(shard):
                arrays += [np.zeros(piece.at - at, np.float32), flat[piece.spec.name][piece.start : piece.stop]]
                at = piece.at + piece.stop - piece.start
            shards.append([*arrays, np.zeros(self.layout.shard_size - at, np.float32)])
        return shards

    def part(self, shard: int) -> np.ndarray:
        """The parameters of one shard, to be replaced."""
        size = self.layout.shard_size
        return self.parameters[shard * size : (shard + 1) * size]


def main() -> None:
    """Runs one process; a worker prints a JSON line of step times in milliseconds."""
    parser = argparse.ArgumentParser(prog="benchmarks.bare_ps")
    parser.add_argument("--index", type=int, required=True, help="of the worker; -1: a ps of its own")
    parser.add_argument("--owners", type=json.loads, required=True, help="JSON list of host:port, one for each shard")
    parser.add_argument("--workload", type=Workload.from_json, required=True)
    args = parser.parse_args()
    parent = ParentPipe()
    addresses = [Address.parse(text) for text in args.owners]
    worker = Worker(args.workload, max(0, args.index), len(addresses))
    if args.index < 0:
        links = shared_links(addresses[0], NUM_WORKERS, worker.layout)
        owner = Owner(args.workload, worker.layout, 0, links)
        for _ in range(args.workload.total_steps):
            owner.step()
    elif len(addresses) == 1:
        run_step = beside_ps(worker, addresses[0])
        parent.report(**dataclasses.asdict(time_steps(run_step, args.workload)))
    else:
        run_step = colocated(args.workload, worker, args.index, addresses)
        parent.report(**dataclasses.asdict(time_steps(run_step, args.workload)))
    parent.wait_for_line("the end", CONNECT_SECS)


def shared_links(address: Address, count: int, layout: FlatLayout) -> list[SharedLink]:
    """Of the owner of a shard, with that many workers."""
    return [SharedLink(each, layout.shard_size) for each in accepted(address, count)]


def beside_ps(worker: Worker, address: Address) -> Callable[[int], int]:
    """The step of a worker whose ps is another process."""
    link = worker.link(connected(address))

    def run_step(index: int) -> int:
        (gradient,) = worker.gradient(index)
        link.send(gradient)
        link.wait()
        return index + 1

    return run_step


def colocated(workload: Workload, worker: Worker, index: int, addresses: Sequence[Address]) -> Callable[[int], int]:
    """The step of one of two workers, each of which owns a shard."""
    other = 1 - index
    with ThreadPoolExecutor(1) as pool:
        accepting = pool.submit(shared_links, addresses[index], 1, worker.layout)
        to_owner = worker.link(connected(addresses[other]))
        owner = Owner(workload, worker.layout, index, accepting.result())
    other_shard = ThreadPoolExecutor(1)

    def exchange(gradient: Arrays) -> None:
        to_owner.send(gradient)
        to_owner.wait()

    def run_step(step: int) -> int:
        shards = worker.gradient(step)
        exchanged = other_shard.submit(exchange, shards[other])
        worker.part(index)[:] = owner.step([np.concatenate(shards[index])])
        exchanged.result()
        return step + 1

    return run_step


def initial(layout: FlatLayout, shard: int) -> np.ndarray:
    """The same small random parameters in each process: float32 `[shard_size]`."""
    return np.random.default_rng(shard).normal(scale=0.05, size=layout.shard_size).astype(np.float32)


def new_session() -> tf.compat.v1.Session:
    """A session of the default graph, initialized, with this process's share of the cores."""
    threads = threads_each(num_cores(), NUM_WORKERS)
    session = tf.compat.v1.Session(config=tf.compat.v1.ConfigProto(intra_op_parallelism_threads=threads))
    session.run(tf.compat.v1.global_variables_initializer())
    return session


if __name__ == "__main__":
    main()
