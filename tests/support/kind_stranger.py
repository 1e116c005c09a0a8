"""Tries to open ports, as somebody who has no business there: prints those that open."""

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
