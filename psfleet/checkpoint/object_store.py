"""Folders and objects of an object store, by fsspec, with the methods of `pathlib.Path` that checkpoints need.

A store has no folders, renames or locks. An object appears when all of it has arrived, and replaces one of its name.
Every request has a deadline: a store that does not answer is an error, never a wait.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from psfleet.checkpoint import store_client
from psfleet.checkpoint.store_client import StoreError, count, file_system
from psfleet.job.store_url import scheme_of

T = TypeVar("T")
Chunk = bytes | memoryview

BLOCK_BYTES = 16 << 20
"""Of one request that reads or writes a range of a large object. S3 takes 10,000 of them for one object: 160 GB."""


@dataclass(frozen=True)
class StoreFolder:
    """A folder or an object in a store; a folder is a prefix of the URLs of objects.

    Its methods raise StoreError, and FileNotFoundError for an object that does not exist.

    Attributes:
        url: Without a slash at its end.
    """

    url: str

    def __truediv__(self, name: str) -> StoreFolder:
        return StoreFolder(f"{self.url}/{name}")

    def __str__(self) -> str:
        return self.url

    @property
    def name(self) -> str:
        """The last part of the URL."""
        return self.url.rpartition("/")[2]

    @property
    def parent(self) -> StoreFolder:
        """The folder that it is in."""
        return StoreFolder(self.url.rpartition("/")[0])

    def resolve(self) -> StoreFolder:
        """As `Path.resolve`: the folder itself."""
        return self

    def iterdir(self) -> list[StoreFolder]:
        """The folders and objects in this folder; none if nothing is in it.

        Raises:
            StoreError: Also if there is no such bucket.
        """
        return [self / name for name in self._list()]

    def sizes(self) -> dict[str, int]:
        """The sizes of the objects in this folder, in bytes, by name: one request."""
        return self._list()

    def is_dir(self) -> bool:
        """Whether objects are in this folder."""
        return bool(self._list())

    def is_file(self) -> bool:
        """Whether it is an object."""
        try:
            found = self._call(lambda: file_system(self._scheme).info(self._path))
        except FileNotFoundError:
            return False
        return bool(found["type"] == "file")

    def exists(self) -> bool:
        """Whether it is a folder or an object."""
        return self.is_dir() or self.is_file()

    def read_bytes(self) -> bytes:
        """The content of an object."""
        content = self._call(lambda: file_system(self._scheme).cat_file(self._path))
        count(len(content))
        return bytes(content)

    def read_range(self, start: int, stop: int) -> bytes:
        """Some bytes of an object, in one request."""
        content = self._call(lambda: file_system(self._scheme).cat_file(self._path, start=start, end=stop))
        count(len(content))
        return bytes(content)

    def blocks(self) -> Iterator[bytes]:
        """The content of an object in order, in blocks of `BLOCK_BYTES`."""
        info = self._call(lambda: file_system(self._scheme).info(self._path))
        for start in range(0, info["size"], BLOCK_BYTES):
            yield self.read_range(start, min(start + BLOCK_BYTES, info["size"]))

    def write_bytes(self, content: bytes) -> None:
        """Writes an object, or replaces it."""
        self._write(lambda: file_system(self._scheme).pipe_file(self._path, content))
        count(len(content))

    def create(self, content: bytes) -> None:
        """Writes an object by a conditional request (`If-None-Match: *`).

        Raises:
            FileExistsError: There is one of this name.
        """
        self._write(lambda: file_system(self._scheme).pipe_file(self._path, content, mode="create"))
        count(len(content))

    def write_chunks(self, chunks: Iterable[Chunk]) -> None:
        """Writes an object as its chunks arrive, or replaces it; after an error there is no part of it."""
        file = self._write(lambda: file_system(self._scheme).open(self._path, "wb", block_size=BLOCK_BYTES))
        try:
            for chunk in chunks:
                for start in range(0, len(chunk), BLOCK_BYTES):
                    block = chunk[start : start + BLOCK_BYTES]
                    self._write(functools.partial(file.write, block))
                    count(len(block))
            self._write(file.close)
        except BaseException:
            # Closed or collected, it would become an object of what has arrived.
            abandon = file.discard
            file.closed = True
            store_client.attempt(abandon)
            raise

    def unlink(self, missing_ok: bool = False) -> None:
        """Deletes an object."""
        try:
            self._call(lambda: file_system(self._scheme).rm_file(self._path))
        except FileNotFoundError:
            if not missing_ok:
                raise

    def delete(self) -> None:
        """Deletes all objects in this folder."""
        try:
            self._call(lambda: file_system(self._scheme).rm(self._path, recursive=True))
        except FileNotFoundError:
            return

    @property
    def _scheme(self) -> str:
        return scheme_of(self.url)

    @property
    def _path(self) -> str:
        return self.url.partition("://")[2]

    def _list(self) -> dict[str, int]:
        """Names and sizes of what is in this folder; a folder in it has the size 0.

        Asks for all objects below this folder. `ls` would list the parent of one that does not exist, which can have
        any number of other objects.
        """
        try:
            found = self._call(lambda: file_system(self._scheme).find(self._path, detail=True))
        except FileNotFoundError as error:
            raise self._without_bucket() from error
        # adlfs finds nothing in a bucket that does not exist, where the others raise.
        if not found and self._scheme == "az" and not self._call(lambda: file_system("az").exists(self._bucket)):
            raise self._without_bucket()
        inside: dict[str, int] = {}
        for path, info in found.items():
            name, slash, _ = path.removeprefix(self._path).removeprefix("/").partition("/")
            if name:
                inside[name] = 0 if slash else int(info["size"])
        return inside

    @property
    def _bucket(self) -> str:
        return self._path.partition("/")[0]

    def _without_bucket(self) -> StoreError:
        return StoreError(self.url, f"bucket {self._bucket} does not exist", is_denied=True)

    def _write(self, call: Callable[[], T]) -> T:
        """As `_call`; an object needs nothing but its bucket."""
        try:
            return self._call(call)
        except FileNotFoundError as error:
            raise self._without_bucket() from error

    def _call(self, call: Callable[[], T]) -> T:
        return store_client.call(self.url, call)
