"""The log lines of several pods: one pod after the other, or as they come."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kubernetes import watch

from psfleet.launch.follow import merged
from psfleet.launch.kubernetes.api import CLOSE_SECS, Cluster
from psfleet.launch.kubernetes.members import Pod


def log_lines(cluster: Cluster, tasks: Mapping[str, Pod], follow: bool, named: bool) -> Iterator[str]:
    """Lines of pods by their tasks' names.

    Args:
        follow: Goes on until the pods have ended.
        named: Each line begins with its task.
    """
    if follow:
        yield from _followed(cluster, tasks, named)
        return
    for name, pod in tasks.items():
        yield from (f"{name} | {line}" if named else line for line in cluster.log(pod.name))


def _followed(cluster: Cluster, tasks: Mapping[str, Pod], named: bool) -> Iterator[str]:
    streams = {name: watch.Watch() for name in tasks}

    def read(name: str) -> Iterator[str]:
        for line in cluster.follow(tasks[name].name, streams[name]):
            yield f"{name} | {line}" if named else line

    def close() -> None:
        for stream in streams.values():
            stream.stop()

    yield from merged(map(read, tasks), close, CLOSE_SECS)
