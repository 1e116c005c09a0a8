"""A store gives back what was written, and every failure of it is one line with a deadline."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest
from support.s3_server import BROKEN, DENIED, S3Server, hold

from psfleet.checkpoint import object_store, store_client
from psfleet.checkpoint.location import require_usable
from psfleet.checkpoint.object_store import StoreFolder
from psfleet.checkpoint.store_client import StoreError, bytes_moved
from psfleet.errors import LOST_PEERS, BadJobError
from psfleet.job.job import parse_job

MIB = 1 << 20
JOB = {
    "name": "stored",
    "program": "program:build",
    "optimizer": {"name": "sgd", "learning_rate": 0.1},
    "train": {"steps": 10, "batch_size": 2},
}


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """As small as S3 takes them: objects of a few MiB need several."""
    monkeypatch.setattr(object_store, "BLOCK_BYTES", 5 * MIB)


def test_an_object_reads_back_as_it_was_written(bucket: StoreFolder) -> None:
    path = bucket / "run" / "one"
    path.write_bytes(b"first")
    path.write_bytes(b"second")
    assert path.read_bytes() == b"second"
    assert path.read_range(1, 3) == b"ec"
    assert path.is_file()
    assert not path.is_dir()
    assert (bucket / "run").is_dir()
    assert not (bucket / "run").is_file()


def test_a_large_object_arrives_in_blocks_and_is_read_in_blocks(bucket: StoreFolder, small_blocks: None) -> None:
    content = bytes(range(256)) * (12 * MIB // 256)
    path = bucket / "large"
    chunks = [content[:7], memoryview(content)[7 : 11 * MIB], content[11 * MIB :]]
    path.write_chunks(chunks)
    found = list(path.blocks())
    assert b"".join(found) == content
    assert len(found) == 3


def test_a_folder_lists_its_folders_and_the_sizes_of_its_objects(bucket: StoreFolder) -> None:
    for name, size in (("run/a/one", 1), ("run/a/two", 2), ("run/b/three", 3), ("run/four", 4), ("running/x", 5)):
        (bucket / name).write_bytes(b"." * size)
    assert {each.name for each in (bucket / "run").iterdir()} == {"a", "b", "four"}
    assert (bucket / "run" / "a").sizes() == {"one": 1, "two": 2}
    assert (bucket / "nothing").iterdir() == []
    assert not (bucket / "nothing").exists()


def test_what_another_client_has_written_since_is_listed(s3: S3Server, bucket: StoreFolder) -> None:
    (bucket / "run" / "one").write_bytes(b"1")
    assert list((bucket / "run").sizes()) == ["one"]
    store_client.file_system.cache_clear()
    (bucket / "run" / "two").write_bytes(b"2")
    assert sorted((bucket / "run").sizes()) == ["one", "two"]


def test_an_object_that_exists_is_not_created_again(bucket: StoreFolder) -> None:
    (bucket / "one").create(b"first")
    with pytest.raises(FileExistsError):
        (bucket / "one").create(b"second")
    assert (bucket / "one").read_bytes() == b"first"


def test_deletion_of_what_does_not_exist_is_no_error(bucket: StoreFolder) -> None:
    (bucket / "run" / "one").write_bytes(b"1")
    (bucket / "run").delete()
    (bucket / "run").delete()
    (bucket / "one").unlink(missing_ok=True)
    assert bucket.iterdir() == []


def test_an_object_that_breaks_off_does_not_appear(s3: S3Server, bucket: StoreFolder, small_blocks: None) -> None:
    def chunks() -> Iterator[bytes]:
        yield b"." * (6 * MIB)
        raise OSError("the snapshot is gone")

    with pytest.raises(OSError, match="the snapshot is gone"):
        (bucket / "part").write_chunks(chunks())
    assert bucket.iterdir() == []
    assert any(method == "DELETE" and "uploadId=" in path for method, path in s3.requests), "upload not aborted"


def test_an_object_whose_last_block_is_refused_does_not_appear(
    s3: S3Server, bucket: StoreFolder, small_blocks: None
) -> None:
    s3.fault = lambda method, path: DENIED if method == "POST" and path.endswith("part") else None
    with pytest.raises(StoreError):
        (bucket / "part").write_chunks([b"." * (6 * MIB)])
    assert bucket.iterdir() == []


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(StoreFolder.iterdir, id="list"),
        pytest.param(lambda path: (path / "one").read_bytes(), id="read"),
        pytest.param(lambda path: (path / "one").write_bytes(b"1"), id="write"),
        pytest.param(lambda path: (path / "one").create(b"1"), id="create"),
        pytest.param(lambda path: (path / "one").write_chunks([b"1"]), id="write in blocks"),
    ],
)
def test_wrong_credentials_are_one_line(
    s3: S3Server, bucket: StoreFolder, call: Callable[[StoreFolder], object]
) -> None:
    s3.fault = lambda method, path: DENIED
    with pytest.raises(StoreError) as caught:
        call(bucket / "run")
    assert caught.value.is_denied
    assert "does not exist in our records" in str(caught.value)
    assert str(caught.value).startswith(f"{bucket}/run")
    assert "\n" not in str(caught.value)
    assert "secret-of-the-tester" not in str(caught.value)


def test_missing_credentials_are_one_line(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    store_client.file_system.cache_clear()
    try:
        with pytest.raises(StoreError, match="credentials") as caught:
            StoreFolder("s3://somewhere").iterdir()
    finally:
        store_client.file_system.cache_clear()
    assert caught.value.is_denied


@pytest.mark.parametrize("call", [StoreFolder.iterdir, lambda path: (path / "one").write_chunks([b"1"])])
def test_a_missing_bucket_is_no_empty_folder(s3: S3Server, call: Callable[[StoreFolder], object]) -> None:
    with pytest.raises(StoreError, match="bucket") as caught:
        call(StoreFolder("s3://never-made/run"))
    assert caught.value.is_denied


def test_a_store_that_fails_may_be_asked_again(s3: S3Server, bucket: StoreFolder) -> None:
    (bucket / "one").write_bytes(b"1")
    s3.fault = lambda method, path: BROKEN
    with pytest.raises(StoreError) as caught:
        (bucket / "one").read_bytes()
    assert not caught.value.is_denied
    assert caught.value.exit_code == LOST_PEERS
    s3.fault = lambda method, path: None
    assert (bucket / "one").read_bytes() == b"1"


def test_one_failure_is_repeated_and_not_seen(s3: S3Server, bucket: StoreFolder) -> None:
    failures = [BROKEN]
    s3.fault = lambda method, path: failures.pop() if failures else None
    (bucket / "one").write_bytes(b"1")
    assert (bucket / "one").read_bytes() == b"1"


def test_a_store_that_does_not_answer_is_an_error_in_time(
    s3: S3Server, bucket: StoreFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = threading.Event()
    monkeypatch.setattr(store_client, "CALL_SECS", 0.3)
    s3.fault = lambda method, path: hold(released)
    began = time.monotonic()
    try:
        with pytest.raises(StoreError, match=r"has not answered for 0\.3 s"):
            (bucket / "one").write_bytes(b"1")
        assert time.monotonic() - began < 5.0
    finally:
        released.set()


def test_what_a_thread_moves_is_counted(bucket: StoreFolder) -> None:
    """A large checkpoint takes long; without a count its reader would look like one of a store that hangs."""
    thread = threading.get_native_id()
    before = bytes_moved(thread)
    (bucket / "one").write_bytes(b"." * 1000)
    (bucket / "one").read_bytes()
    assert bytes_moved(thread) - before == 2000


def test_a_process_starts_only_with_a_store_that_it_may_use(s3: S3Server, bucket: StoreFolder) -> None:
    def job(store: str) -> None:
        require_usable(parse_job({**JOB, "checkpoint": {"store": store}}))

    job(f"{bucket}/run")
    with pytest.raises(
        BadJobError, match=r"checkpoint.store: s3://never-made/run/checkpoints: bucket never-made does not exist"
    ):
        job("s3://never-made/run")
    s3.fault = lambda method, path: DENIED
    with pytest.raises(BadJobError, match=r"checkpoint.store: .*expected .*credentials"):
        job(f"{bucket}/run")
    s3.fault = lambda method, path: BROKEN
    with pytest.raises(StoreError):
        job(f"{bucket}/run")
