"""Runs in a pod of no fleet: tries to connect to ports of a host, and prints those that accept.

`python kind_stranger.py HOST PORT...`
"""

from __future__ import annotations

import socket
import sys

host, *ports = sys.argv[1:]
for port in ports:
    with socket.socket() as connection:
        connection.settimeout(3)
        try:
            connection.connect((host, int(port)))
        except OSError:
            continue
        print(port)
