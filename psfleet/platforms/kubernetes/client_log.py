"""The output of a client's pod as one stream of lines, although the connection to its log may break."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime

from psfleet.manifests.kubernetes.names import CLIENT
from psfleet.platforms.kubernetes.api import Cluster

STAMP = re.compile(r"([0-9T:-]+)(?:\.(\d+))?(Z|[+-]\d\d:\d\d)")
"""A time as RFC 3339 writes it, whose fraction of a second has up to nine digits."""

Time = tuple[float, str]
"""Whole seconds since 1970, and nine digits of the fraction."""


class ClientLog:
    """The log of one container that is not restarted; no line is returned twice."""

    def __init__(self, cluster: Cluster, pod: str) -> None:
        self._cluster = cluster
        self._pod = pod
        self._last: Time = (0.0, "")

    def lines(self, follow: bool) -> Iterator[str]:
        """The lines that were not returned before.

        Args:
            follow: Whether to wait for more until the log ends, or its connection does.
        """
        seen = self._last
        for line in self._cluster.log(self._pod, CLIENT, follow=follow, timestamps=True):
            stamp, _, text = line.partition(" ")
            when = time_of(stamp)
            if when is None:
                # A message of the kubelet.
                yield line
                continue
            self._last = max(self._last, when)
            if when > seen:
                yield text


def time_of(stamp: str) -> Time | None:
    """The time that a text says; None: it says none."""
    found = STAMP.fullmatch(stamp)
    if found is None:
        return None
    seconds = datetime.fromisoformat(found[1] + found[3]).timestamp()
    return seconds, (found[2] or "").ljust(9, "0")
