"""The exchanges of a ps: the sessions of workers on connections, and the shard that each of them belongs to."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf

from ps_service.answer_threads import AnswerThreads
from ps_service.exchange_graph import ExchangeCall, ExchangeGraph
from ps_service.shard_plan import ShardPlan
from psfleet.addresses import Address
from psfleet.exchange import has_connections
from psfleet.exchange.connection import Connection
from psfleet.exchange.messages import MAX_TEXT_BYTES, PUSH, REPLY, Greeting, Kind
from psfleet.exchange.server import exchanging
from psfleet.tf.error_text import reason

if TYPE_CHECKING:
    # Not imported without TLS: it takes 80 ms.
    from psfleet.tls.identity import Identity

logger = logging.getLogger("psfleet.ps")

ALIVE_SECS = 5.0
"""Between signs of life on a connection on which a worker waits; see `SILENT_SECS`."""


class Session:
    """A worker's two connections with this ps.

    Args of the constructor:
        greeting: Of the worker.
        graph: Of the generation that it has named.
        pushes, replies: Its connections.
    """

    def __init__(self, greeting: Greeting, graph: ExchangeGraph, pushes: Connection, replies: Connection) -> None:
        self.greeting = greeting
        self._graph = graph
        self._pushes, self._replies = pushes, replies
        self._sending, self._counting = threading.Lock(), threading.Lock()
        self._num_waiting = 0

    def belongs_to(self, graph: ExchangeGraph) -> bool:
        """Whether it exchanges by this graph."""
        return self._graph is graph

    def serve(self) -> None:
        """Answers pushes until a connection ends. Several segments of one step are answered at once.

        Raises:
            OSError: A connection has ended.
        """
        # A worker that computes sends nothing for as long as it likes; the kernel finds out if its machine is lost. Nor
        # does it read replies to its first pushes before it has made the last one.
        self._pushes.set_timeout(None)
        self._replies.set_timeout(self._graph.step_secs)
        with closing(AnswerThreads()) as threads:
            self._serve(None if self._graph.num_segments == 1 else threads)

    def _serve(self, threads: AnswerThreads | None) -> None:
        """As `serve`, by threads beside this one; None: there is a single segment."""
        while True:
            segment, loss, num_bytes = PUSH.unpack(self._pushes.receive(PUSH.size))
            # From now on the worker may listen for signs of life.
            self._count(1)
            call = self._graph.call(segment, loss, self.greeting.worker)
            if call is None or call.pushed.num_bytes != num_bytes:
                text = f"a push of {num_bytes} bytes to segment {segment} and loss {loss}"
                self._say_why(text)
                raise ConnectionError(text)
            tensors = call.pushed.take()
            self._pushes.receive_into(*tensors)
            answer = partial(self._answer, segment, call, tensors)
            if threads is None or not threads.run(answer):
                answer()
            del answer, tensors

    def close(self) -> None:
        """Ends the connections; from any thread."""
        self._pushes.close()
        self._replies.close()

    def show_life(self) -> None:
        """Sends a sign of life if the worker waits and nothing is being sent; never blocks."""
        if self._num_waiting and self._sending.acquire(blocking=False):
            try:
                # Not before: an answer that is sent in between can leave no room.
                if self._num_waiting and self._replies.can_send():
                    self._replies.send([REPLY.pack(Kind.ALIVE, 0, 0)])
            except OSError:
                self.close()
            finally:
                self._sending.release()

    def _answer(self, segment: int, call: ExchangeCall, tensors: list[np.ndarray]) -> None:
        """Runs an exchange, and sends its reply; ends the connections if that fails."""
        try:
            pulled = call.run(self.greeting.worker, tensors)
            self._count(-1)
            size = sum(each.nbytes for each in pulled)
            with self._sending:
                self._replies.send([REPLY.pack(Kind.PULLED, segment, size), *pulled])
        except (tf.errors.OpError, RuntimeError) as error:
            # The session was closed, or the step has taken too long.
            text = reason(error) if isinstance(error, tf.errors.OpError) else str(error)
            self._say_why(f"{type(error).__name__}: {text}")
            self.close()
        except OSError as error:
            logger.debug("worker %d gets no reply: %s", self.greeting.worker, error)
            self.close()
        except Exception as error:
            # The worker would wait for a reply that never comes.
            logger.exception("the exchange of worker %d failed", self.greeting.worker)
            self._say_why(f"{type(error).__name__}: {error}")
            self.close()

    def _count(self, change: int) -> None:
        with self._counting:
            self._num_waiting += change

    def _say_why(self, text: str) -> None:
        content = text.encode()[:MAX_TEXT_BYTES]
        try:
            with self._sending:
                self._replies.send([REPLY.pack(Kind.ENDED, 0, len(content)), content])
        except OSError as error:
            logger.debug("worker %d does not hear %r: %s", self.greeting.worker, text, error)


class Exchanges:
    """The generations that a ps trains, and the sessions of workers with them.

    Attributes:
        port: To which workers connect.
    """

    port = 0

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._graphs: dict[tuple[str, int], tuple[int, ExchangeGraph]] = {}
        self._sessions: dict[tuple[str, int], Session] = {}
        self._is_over = threading.Event()
        threading.Thread(target=self._show_life, name="exchange-life", daemon=True).start()

    def admit(self, server: str, plan: ShardPlan) -> Callable[[], None]:
        """Accepts the workers of a generation from now on, if they have connections.

        Args:
            server: Address of this process's TensorFlow server, `grpc://host:port`.

        Returns:
            A function that ends their sessions.
        """
        if not has_connections(plan.job, plan.layout):
            return admit_none(plan)
        graph, key = ExchangeGraph(server, plan), (plan.run, plan.generation)
        with self._lock:
            self._graphs[key] = plan.job.fleet.worker_limit, graph

        def end() -> None:
            with self._lock:
                self._graphs.pop(key, None)
                over = [each for each in self._sessions.values() if each.belongs_to(graph)]
            for session in over:
                session.close()
            graph.close()

        return end

    def refusal(self, greeting: Greeting) -> str:
        """Why a worker cannot have a session; empty: it can."""
        with self._lock:
            limit, _ = self._graphs.get((greeting.run, greeting.generation), (0, None))
        if not limit:
            return f"this ps does not train generation {greeting.generation} of {greeting.run!r}"
        return "" if greeting.worker < limit else f"the worker's index is {greeting.worker}, expected one below {limit}"

    def serve(self, greeting: Greeting, pushes: Connection, replies: Connection) -> None:
        """Serves a worker; an earlier session of its index ends, unless that is of a higher incarnation.

        Raises:
            OSError: A connection has ended.
        """
        key = greeting.run, greeting.worker
        with self._lock:
            before = self._sessions.get(key)
            _, graph = self._graphs.get((greeting.run, greeting.generation), (0, None))
            if graph is None or (before is not None and before.greeting.incarnation > greeting.incarnation):
                return
            session = self._sessions[key] = Session(greeting, graph, pushes, replies)
        if before is not None:
            before.close()
        try:
            session.serve()
        finally:
            session.close()
            with self._lock:
                if self._sessions.get(key) is session:
                    del self._sessions[key]

    def close(self) -> None:
        """Ends all sessions."""
        self._is_over.set()
        with self._lock:
            sessions = list(self._sessions.values())
        for session in sessions:
            session.close()

    def _show_life(self) -> None:
        while not self._is_over.wait(ALIVE_SECS):
            with self._lock:
                sessions = list(self._sessions.values())
            for session in sessions:
                session.show_life()


def admit_none(plan: ShardPlan) -> Callable[[], None]:
    """As `Exchanges.admit`, of a ps without connections."""
    del plan
    return lambda: None


@contextmanager
def accepting_exchanges(address: Address, identity: Identity | None) -> Iterator[Exchanges]:
    """Context manager in which a ps accepts the connections of workers.

    Args:
        address: Of the ps.
        identity: With one, connections are encrypted, unless all processes are on this machine's loopback.

    Raises:
        LostPeerError: The port is in use.
    """
    exchanges = Exchanges()
    used = None if address.is_loopback else identity
    with closing(exchanges), exchanging(address, used, exchanges.refusal, exchanges.serve) as exchanges.port:
        yield exchanges
