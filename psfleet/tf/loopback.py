"""Makes TensorFlow's server listen on one address only, as of loopback. It binds all, and no option changes that.

A library calls bind(2) through a slot: a pointer that the dynamic linker fills (ELF, procedure linkage table). While a
server starts, the slots of TensorFlow's libraries point to a function that replaces the address.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

MAPS = Path("/proc/self/maps")
LIBRARIES = "/libtensorflow"
"""Part of the paths of TensorFlow's libraries, and of no others that bind psfleet's port."""
SHT_RELA, SHT_DYNSYM = 4, 11
SLOT_TYPES = {62: (6, 7), 183: (1025, 1026)}
"""By machine (x86-64, AArch64), the relocations that fill a slot with a function's address: GLOB_DAT, JUMP_SLOT."""
SECTION = np.dtype(
    [("name", "<u4"), ("type", "<u4"), ("flags", "<u8"), ("address", "<u8"), ("offset", "<u8"), ("size", "<u8"),
     ("link", "<u4"), ("info", "<u4"), ("align", "<u8"), ("entry", "<u8")]
)  # fmt: skip
RELOCATION = np.dtype([("offset", "<u8"), ("type", "<u4"), ("symbol", "<u4"), ("addend", "<i8")])
SYMBOL = np.dtype([("name", "<u4"), ("rest", "V20")])

_Bind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_uint32, use_errno=True)
_one_at_a_time = threading.Lock()


@contextmanager
def bound_to(port: int, host: str) -> Iterator[None]:
    """Context manager in whose block TensorFlow binds this port on one address only, an IPv4 one of this machine.

    Has no effect if the slots are not found (not Linux, or another processor): check the port afterwards
    (`psfleet.tls.listeners`).
    """
    libc = ctypes.CDLL(None, use_errno=True)
    bind = _Bind(("bind", libc))

    def bind_to_host(descriptor: int, address: int, length: int) -> int:
        replaced = loopback_address(ctypes.string_at(address, length), port, host)
        return bind(descriptor, ctypes.cast(ctypes.c_char_p(replaced), ctypes.c_void_p), length)

    with _one_at_a_time:
        hook = _Bind(bind_to_host)
        before = [(slot, slot.write(libc, ctypes.cast(hook, ctypes.c_void_p).value or 0)) for slot in _slots(b"bind")]
        try:
            yield
        finally:
            for slot, value in before:
                slot.write(libc, value)


def find_slots() -> None:
    """Finds the slots now, for processes that are forked from this one: a search takes half a second."""
    for _ in _slots(b"bind"):
        pass


def loopback_address(address: bytes, port: int, host: str) -> bytes:
    """Replaces the host of a `sockaddr` with this port by an IPv4 one; for IPv6 by ::ffff:HOST, for IPv4 peers."""
    family, named = struct.unpack_from("=H", address)[0], struct.unpack_from("!H", address, 2)[0]
    if named != port:
        return address
    if family == socket.AF_INET:
        return address[:4] + socket.inet_aton(host) + address[8:]
    if family == socket.AF_INET6:
        return address[:8] + socket.inet_pton(socket.AF_INET6, f"::ffff:{host}") + address[24:]
    return address


@dataclass(frozen=True)
class _Slot:
    """An address in a library's table of functions, and whether its page may be written to."""

    address: int
    is_writable: bool

    def write(self, libc: ctypes.CDLL, function: int) -> int:
        """Stores a function's address; returns the one before."""
        page = self.address & -mmap.PAGESIZE
        if not self.is_writable:
            self._protect(libc, page, mmap.PROT_READ | mmap.PROT_WRITE)
        slot = ctypes.c_size_t.from_address(self.address)
        before, slot.value = slot.value, function
        if not self.is_writable:
            self._protect(libc, page, mmap.PROT_READ)
        return before

    def _protect(self, libc: ctypes.CDLL, page: int, protection: int) -> None:
        if libc.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(mmap.PAGESIZE), protection):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))


@dataclass(frozen=True)
class _Mapping:
    """A line of /proc/self/maps (proc(5)): a range of this process's memory and the file mapped to it."""

    start: int
    stop: int
    is_writable: bool
    offset: int
    path: str

    @classmethod
    def parse(cls, line: str) -> _Mapping:
        span, access, offset, _, _, *path = line.split(maxsplit=5)
        start, _, stop = span.partition("-")
        return cls(int(start, 16), int(stop, 16), "w" in access, int(offset, 16), "".join(path))


def _slots(function: bytes) -> Iterator[_Slot]:
    """The slots of a function in TensorFlow's loaded libraries.

    The kernel knows these files by paths without symbolic links, which can differ from those of the Python package.
    """
    # A process has more than a thousand mappings, of which these libraries have a few.
    lines = [line for line in MAPS.read_text().splitlines() if LIBRARIES in line] if MAPS.exists() else []
    mappings = [_Mapping.parse(line) for line in lines]
    bases: dict[str, int] = {}
    for mapping in mappings:
        # The lowest one is the base address; the same offset may be mapped again above it.
        if mapping.offset == 0:
            bases.setdefault(mapping.path, mapping.start)
    for path, base in bases.items():
        if LIBRARIES not in path:
            continue
        for offset in _slot_offsets(Path(path), function):
            address = base + offset
            here = next(mapping for mapping in mappings if mapping.start <= address < mapping.stop)
            yield _Slot(address, here.is_writable)


@cache
def _slot_offsets(library: Path, function: bytes) -> list[int]:
    """Offsets of a function's slots from the base address of a library (ELF, 64 bits, little-endian)."""
    with library.open("rb") as file:
        # Mapped, not read: copying the tables of a library of 900 MB took half a second.
        content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    if content[:6] != b"\x7fELF\x02\x01":
        return []
    (machine,) = struct.unpack_from("<H", content, 18)
    (table,) = struct.unpack_from("<Q", content, 40)
    (count,) = struct.unpack_from("<H", content, 60)
    sections = np.frombuffer(content, SECTION, count, table)

    def entries(section: np.void, kind: np.dtype[np.void]) -> np.ndarray:
        return np.frombuffer(content, kind, int(section["size"]) // kind.itemsize, int(section["offset"]))

    offsets: list[int] = []
    for section in sections[sections["type"] == SHT_RELA]:
        symbols = sections[section["link"]]
        if symbols["type"] != SHT_DYNSYM:
            continue
        names = list(_occurrences(content, sections[symbols["link"]], function + b"\0"))
        wanted = np.flatnonzero(np.isin(entries(symbols, SYMBOL)["name"], names)) if names else ()
        relocations = entries(section, RELOCATION)
        is_slot = np.isin(relocations["type"], SLOT_TYPES.get(machine, ())) & np.isin(relocations["symbol"], wanted)
        offsets += relocations["offset"][is_slot].tolist()
    return offsets


def _occurrences(content: mmap.mmap, section: np.void, text: bytes) -> Iterator[int]:
    """Offsets of a text in a section. A linker may store a name as the end of a longer one."""
    start = int(section["offset"])
    stop = start + int(section["size"])
    at = content.find(text, start, stop)
    while at >= 0:
        yield at - start
        at = content.find(text, at + 1, stop)
