"""Shows a process's metrics to Prometheus, on a port of its own; they are read when Prometheus asks, never before."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from psfleet.errors import LostPeerError
from psfleet.service.metrics import COMMON_LABELS, Distribution, Metric, Readings
from psfleet.service.settings import Settings

if TYPE_CHECKING:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily

Read = Callable[[], Iterable[Readings]]
Sample = tuple[list[str], float | Distribution]
"""Values of the labels, and what the metric says there."""


@contextmanager
def exposing(settings: Settings, read: Read) -> Iterator[None]:
    """Serves `http://…:<metrics port>/metrics` until the block is left; nothing at all where the port is 0.

    Args:
        settings: Of this process.
        read: Tells the present values, from any thread.

    Raises:
        LostPeerError: The port is taken.
    """
    if not settings.metrics_port:
        yield
        return
    # Half a tenth of a second, and 2 MB: only for those who want it.
    from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector, start_http_server

    registry = CollectorRegistry(auto_describe=False)
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    registry.register(_Collector(read))
    anywhere = "::" if socket.has_dualstack_ipv6() else "0.0.0.0"
    host = "127.0.0.1" if settings.address.is_loopback else anywhere
    try:
        server, thread = start_http_server(settings.metrics_port, host, registry)
    except OSError as error:
        raise LostPeerError(
            f"metrics port {settings.metrics_port} of {settings.address.host} cannot be listened on "
            f"({error.strerror or error}), expected a free one"
        ) from error
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Collector:
    """Turns readings into what prometheus_client writes."""

    def __init__(self, read: Read) -> None:
        self._read = read

    def collect(self) -> Iterator[Family]:
        """See prometheus_client's `Collector`."""
        samples: dict[Metric, list[Sample]] = {}
        for told in self._read():
            common = [told.run, told.role, str(told.index)]
            for reading in told.readings:
                samples.setdefault(reading.metric, []).append(([*common, *reading.labels], reading.value))
        for metric, values in samples.items():
            yield _family(metric, values)


def _family(metric: Metric, samples: list[Sample]) -> Family:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    labels = (*COMMON_LABELS, *metric.labels)
    if metric.kind == "histogram":
        histogram = HistogramMetricFamily(metric.name, metric.help, labels=labels)
        for at, value in samples:
            assert isinstance(value, Distribution), metric.name
            histogram.add_metric(at, list(value.cumulated()), value.total)
        return histogram
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    family = kind(metric.name, metric.help, labels=labels)
    for at, value in samples:
        assert not isinstance(value, Distribution), metric.name
        family.add_metric(at, value)
    return family
