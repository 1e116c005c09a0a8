"""Options of gRPC channels: how a peer is found again, and how an unresponsive one is detected."""

from __future__ import annotations

RECONNECT = (
    ("grpc.min_reconnect_backoff_ms", 5000),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.dns_min_time_between_resolutions_ms", 500),
)
"""Options of all gRPC channels: a restarted peer, also at another address, is found within two seconds.

By default gRPC waits 20 s for a connection, which is what `min_reconnect_backoff_ms` sets, and resolves a name again
after 30 s at the earliest.
"""

KEEPALIVE = (
    ("grpc.keepalive_time_ms", 10000),
    ("grpc.keepalive_timeout_ms", 5000),
    ("grpc.http2.ping_timeout_ms", 5000),
)
"""Options by which a peer that is frozen, or whose machine is lost, is detected within 15 s.

gRPC waits for the answer to a ping for `ping_timeout_ms`, a minute by default, whatever the keepalive timeout is.
"""

PINGS = (
    *KEEPALIVE,
    ("grpc.http2.min_ping_interval_without_data_ms", 5000),
)
"""Options of both ends of a control channel: a server that does not expect so many pings ends the connection."""

ATTENDANCE = (*PINGS, ("grpc.http2.max_pings_without_data", 0))
"""Options of both ends of a client's registration, over which nothing but pings is sent for hours.

By default gRPC ends a connection on which pings come more often than every 5 minutes.
"""

TENSORFLOW = ",".join(
    (
        "grpc.http2.bdp_probe=0",
        "grpc.http2.lookahead_bytes=8388608",
        "grpc.http2.max_frame_size=1048576",
        "grpc.enable_http_proxy=0",
        *(f"{name}={value}" for name, value in (*KEEPALIVE, *RECONNECT)),
    )
)
"""Options of the channels between TensorFlow's servers.

Keepalive detects an unresponsive peer. HTTP/2's default window of 64 KiB, which does not grow without the bandwidth
probe, and its frames of 16 KiB took 15 % of a step with 118 thousand parameters and 5 % of one with 1.9 million.
gRPC's default is to connect through `http_proxy`, loopback included; the program's own connections still use it.
"""
