"""Runs in the network namespace of a container, with NET_RAW: looks for a mark in what crosses an interface.

`python listener.py INTERFACE FLOAT BYTES`: ends when the mark was seen or so many bytes have crossed without it; prints
both as JSON.
"""

from __future__ import annotations

import json
import socket
import struct
import sys

SECS = 30.0
ALL_PROTOCOLS = 3
"""ETH_P_ALL, see packet(7)."""


def main(interface: str, mark: float, enough: int) -> None:
    """Looks at every packet, in and out."""
    pattern = struct.pack("<16f", *[mark] * 16)
    seen, found = 0, False
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_PROTOCOLS)) as listening:
        listening.bind((interface, 0))
        listening.settimeout(SECS)
        while seen < enough and not found:
            packet = listening.recv(1 << 17)
            seen += len(packet)
            found = pattern in packet
    print(json.dumps({"bytes": seen, "found": found}))


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]))
