"""A child process's pipe to the benchmark: reports results, waits for lines, and exits when the benchmark exits."""

from __future__ import annotations

import json
import os
import queue
import sys
import threading


class ParentPipe:
    """Reads stdin on a thread, and exits this process when stdin is closed, also if the benchmark was killed."""

    def __init__(self) -> None:
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._listen, name="parent-pipe", daemon=True).start()

    def report(self, **facts: object) -> None:
        """Prints one JSON line."""
        print(json.dumps(facts), flush=True)

    def wait_for_line(self, what: str, timeout_secs: float) -> None:
        """Waits for the benchmark's next line.

        Raises:
            TimeoutError: None came within `timeout_secs`; the message contains `what`.
        """
        try:
            self._lines.get(timeout=timeout_secs)
        except queue.Empty as error:
            raise TimeoutError(f"gave up after {timeout_secs:g} s waiting for {what}") from error

    def _listen(self) -> None:
        for line in sys.stdin:
            self._lines.put(line)
        os._exit(0)
