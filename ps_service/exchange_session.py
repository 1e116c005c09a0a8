"""The session of a worker on connections with a ps: pushes arrive, and are answered."""

from __future__ import annotations

import logging
import threading
from contextlib import closing
from functools import partial

import numpy as np
import tensorflow as tf

from ps_service.answer_threads import AnswerThreads
from ps_service.exchange_graph import ExchangeCall, ExchangeGraph
from psfleet.exchange.connection import Connection
from psfleet.exchange.message_layout import MessageLayout
from psfleet.exchange.messages import MAX_TEXT_BYTES, NOWHERE, Greeting, Kind, Push, Reply, send_places
from psfleet.exchange.shared_memory import FilledMemory, ReceivedMemory
from psfleet.tf.error_text import reason

logger = logging.getLogger("psfleet.ps")


class ExchangeSession:
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
        # Replaced when the session is served.
        self._received: ReceivedMemory[tuple[int, int]] = ReceivedMemory({})
        self._filled = FilledMemory()

    def belongs_to(self, graph: ExchangeGraph) -> bool:
        """Whether it exchanges by this graph."""
        return self._graph is graph

    def serve(self) -> None:
        """Answers pushes until a connection ends. Several segments of one step are answered at once.

        Raises:
            OSError: A connection has ended.
        """
        try:
            self._share_memory()
            # A worker that computes sends nothing for as long as it likes; the kernel finds out if its machine is lost.
            # Nor does it read replies to its first pushes before it has made the last one.
            self._pushes.set_timeout(None)
            self._replies.set_timeout(self._graph.step_secs)
            with closing(AnswerThreads()) as threads:
                self._serve(None if self._graph.num_segments == 1 else threads)
        finally:
            # Others can have this session for longer.
            self._received, self._filled = ReceivedMemory({}), FilledMemory()

    def _share_memory(self) -> None:
        layouts = self._graph.layouts(self.greeting.worker)
        self._received = ReceivedMemory(layouts)
        self._received.share(self._pushes)
        if self._pushes.is_local:
            # So that the first step, too, needs no memory of this process alone.
            send_places(self._pushes, [self._received.free(key) for key in sorted(layouts)])
        self._filled = FilledMemory.received(self._replies)

    def _serve(self, threads: AnswerThreads | None) -> None:
        """As `serve`, by threads beside this one; None: there is a single segment."""
        while True:
            push = Push.receive(self._pushes)
            # From now on the worker may listen for signs of life.
            self._count(1)
            call = self._graph.call(push.segment, push.loss, self.greeting.worker)
            if call is None or call.pushed.num_bytes != push.num_bytes:
                text = f"a push of {push.num_bytes} bytes to segment {push.segment} and loss {push.loss}"
                self._say_why(text)
                raise ConnectionError(text)
            tensors = self._tensors(push, call)
            answer = partial(self._answer, push, call, tensors)
            if threads is None or not threads.run(answer):
                answer()
            del answer, tensors

    def _tensors(self, push: Push, call: ExchangeCall) -> list[np.ndarray]:
        if push.at != NOWHERE:
            try:
                return self._received.arrived((push.segment, push.loss), push.at)
            except ConnectionError as error:
                self._say_why(str(error))
                raise
        tensors = call.pushed.take()
        self._pushes.receive_into(*tensors)
        return tensors

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
                    Reply(Kind.ALIVE).send(self._replies)
            except OSError:
                self.close()
            finally:
                self._sending.release()

    def _answer(self, push: Push, call: ExchangeCall, tensors: list[np.ndarray]) -> None:
        """Runs an exchange, and sends its reply; ends the connections if that fails."""
        try:
            pulled = call.run(self.greeting.worker, tensors)
            self._count(-1)
            self._reply(push, pulled)
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

    def _reply(self, push: Push, pulled: list[np.ndarray]) -> None:
        """Sends the reply to a push; raises as `Connection`."""
        free = self._received.free((push.segment, push.loss))
        reply = Reply(Kind.PULLED, push.segment, push.loss, sum(each.nbytes for each in pulled), push_at=free)
        if push.reply_at != NOWHERE and self._filled.put(push.reply_at, MessageLayout.of(pulled), pulled):
            reply, pulled = reply._replace(at=push.reply_at), []
        with self._sending:
            reply.send(self._replies, pulled)

    def _count(self, change: int) -> None:
        with self._counting:
            self._num_waiting += change

    def _say_why(self, text: str) -> None:
        content = text.encode()[:MAX_TEXT_BYTES]
        try:
            with self._sending:
                Reply(Kind.ENDED, num_bytes=len(content)).send(self._replies, [content])
        except OSError as error:
            logger.debug("worker %d does not hear %r: %s", self.greeting.worker, text, error)
