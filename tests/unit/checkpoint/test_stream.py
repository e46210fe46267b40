"""A shard is proved before anybody has said where its bytes go, and only proved bytes are handed on."""

import threading
from pathlib import Path
from typing import Optional

import pytest

from hyperpod_kit.checkpoint.repository.format import digest
from hyperpod_kit.checkpoint.repository.read import stream
from hyperpod_kit.checkpoint.repository.read.chunk_reader import READERS, Pump, all_chunks
from hyperpod_kit.checkpoint.repository.store.posix import FileReader
from hyperpod_kit.errors import DigestMismatch
from tests.support import wait

CHUNK = 4096
SIZE = 5 * CHUNK + 100


def _shard(damaged: Optional[int] = None, file: Optional[Path] = None) -> "tuple[stream.Shard, bytes]":
    """In memory, or in `file`."""
    alg = digest.algorithm("blake2b")
    data = bytearray(number % 251 for number in range(SIZE))
    leaves = digest.leaves_of(alg, memoryview(data), chunk=CHUNK)
    whole = bytearray(data) + leaves
    if damaged is not None:
        whole[damaged * CHUNK + 7] ^= 1
    root = digest.root_digest(alg, leaves, len(whole))
    source: stream.Source = stream.Mapped(memoryview(whole))
    if file is not None:
        file.write_bytes(whole)
        source = FileReader(str(file))
    return stream.Shard(source, len(whole), root, name="it", chunk=CHUNK), bytes(data)


@pytest.fixture(params=["memory", "file"])
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Optional[Path]:
    return None if request.param == "memory" else tmp_path / "shard"


@pytest.mark.parametrize("ahead", [0, 2 * SIZE])
def test_all_chunks_are_handed_on_once_whether_proved_before_or_after(file: Optional[Path], ahead: int) -> None:
    shard, data = _shard(file=file)
    before = READERS + 2 + 1 if file is not None and not ahead else shard.chunks
    proved = threading.Semaphore(0)
    check = shard.verify_chunk

    def counted(index: int, view: memoryview) -> None:
        check(index, view)
        proved.release()

    shard.verify_chunk = counted  # type: ignore[method-assign]
    with Pump(all_chunks(shard), workers=2, ahead=ahead) as moving:
        for _ in range(before):
            assert proved.acquire(timeout=60)  # nobody has said where to
        assert bytes(moving.wait_for_first_chunk()) == data[:CHUNK]
        taken = []
        moving.deliver_all_and_wait(lambda _, begin, view: taken.append((begin, bytes(view))))
    assert b"".join(part for _, part in sorted(taken)) == data and len(taken) == shard.chunks
    for _ in range(shard.chunks - before):
        assert proved.acquire(blocking=False)
    assert not proved.acquire(blocking=False)  # none was compared twice


def test_once_it_is_known_where_to_no_more_memory_is_made_ready_than_goes_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard, data = _shard(file=tmp_path / "shard")
    made = []

    def fault_in(buffer: stream.Buffer) -> None:
        made.append(buffer)
        wait.until(lambda: moving._deliver is not None)

    monkeypatch.setattr(stream.Buffer, "fault_in", fault_in)
    taken: list[tuple[int, bytes]] = []
    with Pump(all_chunks(shard), workers=1, ahead=2 * SIZE) as moving:
        moving.deliver_all_and_wait(lambda _, begin, view: taken.append((begin, bytes(view))))
    assert b"".join(part for _, part in sorted(taken)) == data
    assert len(made) <= 2 < shard.chunks - READERS  # with those of the readers: one in work, and one more


@pytest.mark.parametrize("damaged", [0, 3])
def test_a_damaged_chunk_is_never_handed_on(damaged: int, file: Optional[Path]) -> None:
    shard, _ = _shard(damaged, file)
    taken = []
    with pytest.raises(DigestMismatch, match=f"bytes {damaged * CHUNK}"), Pump(all_chunks(shard), workers=2) as moving:
        moving.wait_for_first_chunk()
        moving.deliver_all_and_wait(lambda _, begin, view: taken.append(begin))
    assert damaged * CHUNK not in taken


def test_who_leaves_without_a_word_waits_for_no_thread(file: Optional[Path]) -> None:
    shard, _ = _shard(file=file)
    with Pump(all_chunks(shard), workers=2) as moving:
        moving.wait_for_first_chunk()
    assert not any(thread.is_alive() for thread in moving._threads)
