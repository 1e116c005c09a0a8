"""A standing fleet as a client sees it: devices, containers, sessions and queues."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Any, Self

import tensorflow as tf
import tensorflow.compat.v1 as v1

from psfleet.addresses import Address, local_address
from psfleet.control.attendance import FleetTask, SecuredClient
from psfleet.errors import UsageError
from psfleet.job.fleet_access import FleetAccess
from psfleet.plurals import counted
from psfleet.tf.client.clearing import clear
from psfleet.tf.client.names import resource_container
from psfleet.tf.client.queue import Queue
from psfleet.tf.client.queue_kind import QueueKind, Shapes
from psfleet.tf.client.session import FleetSession, open_session


class Fleet:
    """A client's connection to a standing fleet, as `psfleet.connect` returns it. Usable from several threads.

    Graphs are those of TensorFlow 1: build them with `with tf.Graph().as_default():`, or after
    `tf.compat.v1.disable_eager_execution()`.

    Args of the constructor:
        access: The fleet.
        own: Address of this process's TensorFlow server, which runs.
        client: With TLS, this client, whose tunnels run if it has an address.
    """

    def __init__(self, access: FleetAccess, own: Address, client: SecuredClient | None = None) -> None:
        self._access = access
        self._own = own
        self._client = client
        has_tunnels = client is not None and client.address is not None
        self._tasks = [
            FleetTask(role, index, Address.parse(text), local_address(role, index) if has_tunnels else None)
            for role, addresses in (("ps", access.ps), ("worker", access.workers))
            for index, text in enumerate(addresses)
        ]
        self._building = threading.Lock()
        # One for each task: a session with a task that does not answer takes up to a minute.
        self._opening = {task: threading.Lock() for task in self._tasks}
        self._queue_sessions: dict[FleetTask, FleetSession] = {}
        self._entered = threading.local()

    @property
    def name(self) -> str:
        """The fleet's name."""
        return self._access.name

    @property
    def cluster_spec(self) -> tf.train.ClusterSpec:
        """The jobs `ps` and `worker` with the addresses at which this process reaches their tasks."""
        return tf.train.ClusterSpec(
            {role: [task.data for task in self._tasks if task.role == role] for role in ("ps", "worker")}
        )

    @property
    def num_ps(self) -> int:
        """The number of parameter servers."""
        return len(self._access.ps)

    @property
    def num_workers(self) -> int:
        """The number of workers that lend their devices."""
        return len(self._access.workers)

    def device(self, role: str, index: int) -> str:
        """The device of a task for `tf.device`.

        Args:
            role: ps or worker.

        Raises:
            UsageError: The fleet has no such task.
        """
        task = next((task for task in self._tasks if (task.role, task.index) == (role, index)), None)
        if task is None:
            workers = counted(self.num_workers, "worker")
            raise UsageError(f"fleet {self.name} has no {role} {index}, expected one of {self.num_ps} ps and {workers}")
        return f"/job:{role}/task:{index}"

    @contextmanager
    def container(self, name: str) -> Iterator[None]:
        """Context manager: variables and queues of the default graph that are made inside lie in a container.

        Clients that name the same container share what has the same name in it; those of runs have other names.
        Enter it inside of the graph: `with graph.as_default(), fleet.container("problem_1"):`.

        Args:
            name: Letters, digits, dots, dashes, underscores and slashes.

        Raises:
            UsageError: The name has other characters.
        """
        resources, before = resource_container(name), self._container
        self._entered.container = name
        try:
            with v1.get_default_graph().container(resources):
                yield
        finally:
            self._entered.container = before

    def session(self, graph: tf.Graph | None = None, config: v1.ConfigProto | None = None) -> FleetSession:
        """Opens a session with every ps and worker; a context manager, which closes it.

        Each session has a TensorFlow job name of its own, so that clients do not end each other's.

        Args:
            graph: None: the default graph.
            config: Options of the session; None: the threads and accelerators of the fleet's `device` section.

        Raises:
            LostPeerError: A task does not answer; names it.
            BadJobError: The fleet was started again since `psfleet.connect`.
            UsageError: `config` has a ClusterSpec.
        """
        chosen = v1.get_default_graph() if graph is None else graph
        return open_session(self._access, self._tasks, self._own, chosen, config, self._client)

    def queue(
        self,
        name: str,
        dtypes: Sequence[Any],
        shapes: Shapes | None = None,
        kind: str = "fifo",
        capacity: int = 1000,
        min_after_dequeue: int = 0,
        device: str | None = None,
    ) -> Queue:
        """A queue that clients share by its name in the present container; it is made unless there is one.

        Args:
            name: Letters, digits, dots, dashes, underscores and slashes.
            dtypes: Type of each component of an element.
            shapes: Shape of each component; see `QueueKind`.
            kind: fifo, shuffle, padding or priority.
            capacity: Maximum number of elements.
            min_after_dequeue: With shuffle: number of elements that stay in the queue so that they mix.
            device: That of a task, from `device`; None: of a ps, chosen by the name.

        Raises:
            UsageError: TensorFlow has no such queue.
            BadJobError: There is a queue of this name with other properties, which stays as it is.
            LostPeerError: The task does not answer.
        """
        wanted = QueueKind.of(name, dtypes, shapes, kind, capacity, min_after_dequeue)
        container = self._container
        task = self._task_at(device) if device is not None else self._task_of(f"{container}:{name}")
        resources = resource_container(container) if container else ""
        path = f"/job:{task.role}/task:{task.index}"

        @contextmanager
        def place(graph: tf.Graph) -> Iterator[None]:
            # A graph has one container for all threads.
            with self._building, ExitStack() as stack:
                # None: what surrounds the caller does not apply to a queue that others share.
                for scope in (graph.control_dependencies(None), graph.device(None), graph.device(path)):
                    stack.enter_context(scope)
                stack.enter_context(graph.container(resources))
                yield

        queue = Queue(wanted, task, place, self._session_with, container, self._access.deadlines.stall_secs)
        queue.size()
        return queue

    def reset(self, name: str) -> None:
        """Drops what is in a container on all tasks: variables, queues, tables; nothing else, and no session ends.

        A call that waits at one of its queues still waits until its timeout.

        Raises:
            UsageError: The name is none of a container.
            LostPeerError: A task does not answer; the others have dropped it.
        """
        clear(self._tasks, resource_container(name))

    def close(self) -> None:
        """Closes the sessions behind the queues; those of `session` are the caller's."""
        for task in self._tasks:
            with self._opening[task]:
                session = self._queue_sessions.pop(task, None)
            if session is not None:
                session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def _container(self) -> str:
        """The container that this thread has entered; empty: none."""
        return str(getattr(self._entered, "container", ""))

    def _task_of(self, name: str) -> FleetTask:
        """The ps that holds the queue of a name."""
        digest = hashlib.sha256(name.encode()).digest()
        return self._tasks[int.from_bytes(digest[:8], "big") % self.num_ps]

    def _task_at(self, device: str) -> FleetTask:
        try:
            spec = tf.DeviceSpec.from_string(device)
        except ValueError as error:
            raise UsageError(f"device is {device!r}, expected one of `Fleet.device` ({error})") from error
        self.device(str(spec.job), -1 if spec.task is None else spec.task)
        return next(task for task in self._tasks if (task.role, task.index) == (spec.job, spec.task))

    def _session_with(self, task: FleetTask) -> FleetSession:
        """This client's session for the queues on a task."""
        with self._opening[task]:
            session = self._queue_sessions.get(task)
            if session is None or session.is_lost:
                if session is not None:
                    session.close()
                session = open_session(self._access, [task], self._own, tf.Graph(), None, self._client)
                self._queue_sessions[task] = session
            return session
