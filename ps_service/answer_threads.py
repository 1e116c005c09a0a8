"""The threads of a ps that answer the pushes of a worker beside each other."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue

logger = logging.getLogger("psfleet.ps")

Task = Callable[[], None]


class AnswerThreads:
    """Runs tasks at once, each on a thread that has none; a thread that has ended its task takes another one.

    To start a thread for each push took 80 ms of the CPU time of a step with 256 pushes. `ThreadPoolExecutor` has a
    number of threads beyond which tasks wait, and keeps a task for which it cannot start one.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()
        self._num_idle = 0
        self._is_over = False

    def run(self, task: Task) -> bool:
        """Runs a task that raises nothing; False: it does not, because a container has too many threads."""
        with self._lock:
            if self._num_idle:
                self._num_idle -= 1
                self._tasks.put(task)
                return True
        try:
            # In a list: a thread keeps its arguments until it ends.
            threading.Thread(target=self._run_all, args=[[task]], name="exchange", daemon=True).start()
        except RuntimeError as error:
            logger.debug("no thread for another push: %s", error)
            return False
        return True

    def close(self) -> None:
        """Ends the threads, those with a task after it."""
        with self._lock:
            self._is_over = True
            for _ in range(self._num_idle):
                self._tasks.put(None)

    def _run_all(self, first: list[Task]) -> None:
        task: Task | None = first.pop()
        while task is not None:
            task()
            # Nothing of it, such as memory for tensors, is kept until there is another one.
            del task
            with self._lock:
                if self._is_over:
                    return
                self._num_idle += 1
            task = self._tasks.get()
