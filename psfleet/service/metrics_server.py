"""HTTP endpoint for Prometheus on a separate port. Values are read at scrape time."""

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
"""Label values, and the value of the metric."""


@contextmanager
def exposing(settings: Settings, read: Read) -> Iterator[None]:
    """Context manager that serves `http://…:<metrics port>/metrics`; a port of 0 disables it.

    Args:
        settings: Settings of this process.
        read: Returns the current values; called from any thread.

    Raises:
        LostPeerError: The port is in use.
    """
    if not settings.metrics_port:
        yield
        return
    # Imported on demand: it takes 0.05 s and 2 MB.
    from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector, start_http_server

    registry = CollectorRegistry(auto_describe=False)
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    registry.register(_Collector(read))
    any_host = "::" if socket.has_dualstack_ipv6() else "0.0.0.0"
    host = "127.0.0.1" if settings.address.is_loopback else any_host
    try:
        server, thread = start_http_server(settings.metrics_port, host, registry)
    except OSError as error:
        raise LostPeerError(
            f"metrics port {settings.metrics_port} of {settings.address.host} is not available "
            f"({error.strerror or error}), expected a free port"
        ) from error
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Collector:
    """Converts readings to metric families of prometheus_client."""

    def __init__(self, read: Read) -> None:
        self._read = read

    def collect(self) -> Iterator[Family]:
        """See prometheus_client's `Collector`."""
        samples: dict[Metric, list[Sample]] = {}
        for process in self._read():
            common = [process.run, process.role, str(process.index)]
            for reading in process.readings:
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
