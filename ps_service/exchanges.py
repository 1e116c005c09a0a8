"""The exchanges of a ps: the sessions of workers on connections, and the shard that each of them belongs to."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from ps_service.exchange_graph import ExchangeGraph
from ps_service.exchange_session import ExchangeSession
from ps_service.shard_plan import ShardPlan
from psfleet.addresses import Address
from psfleet.exchange import has_connections
from psfleet.exchange.connection import Connection
from psfleet.exchange.messages import Greeting
from psfleet.exchange.server import exchanging

if TYPE_CHECKING:
    # Not imported without TLS: it takes 80 ms.
    from psfleet.tls.identity import Identity

ALIVE_SECS = 5.0
"""Between signs of life on a connection on which a worker waits; see `SILENT_SECS`."""


class Exchanges:
    """The generations that a ps trains, and the sessions of workers with them.

    Attributes:
        port: To which workers connect.
    """

    port = 0

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._graphs: dict[tuple[str, int], tuple[int, ExchangeGraph]] = {}
        self._sessions: dict[tuple[str, int], ExchangeSession] = {}
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
            session = self._sessions[key] = ExchangeSession(greeting, graph, pushes, replies)
        if before is not None:
            before.close()
        del before
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
            self._show_life_once()

    def _show_life_once(self) -> None:
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
