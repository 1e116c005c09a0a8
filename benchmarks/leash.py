"""A child's side of the pipe to the benchmark: it reports facts, waits for a word, and ends when the benchmark does."""

from __future__ import annotations

import json
import os
import queue
import sys
import threading


class Leash:
    """Ends this process as soon as its stdin is closed, be it because the benchmark was killed."""

    def __init__(self) -> None:
        self._words: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._listen, name="leash", daemon=True).start()

    def tell(self, **facts: object) -> None:
        """Prints one JSON line."""
        print(json.dumps(facts), flush=True)

    def wait_for_word(self, what: str, timeout_secs: float) -> None:
        """Waits for the benchmark's next line.

        Raises:
            TimeoutError: None came; the text names `what` was waited for.
        """
        try:
            self._words.get(timeout=timeout_secs)
        except queue.Empty as error:
            raise TimeoutError(f"gave up after {timeout_secs:g} s waiting for {what}") from error

    def _listen(self) -> None:
        for line in sys.stdin:
            self._words.put(line)
        os._exit(0)
