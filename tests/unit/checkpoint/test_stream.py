"""A shard that is mapped is proved before anybody has said where its bytes go, and only proved bytes are handed on."""

import threading
from typing import Optional

import pytest

from hyperpod_kit.checkpoint.repository import digest, stream
from hyperpod_kit.checkpoint.repository.pump import Pump, whole
from hyperpod_kit.errors import DigestMismatch

CHUNK = 4096
SIZE = 5 * CHUNK + 100


def _shard(damaged: Optional[int] = None) -> "tuple[stream.Shard, bytes]":
    alg = digest.algorithm("blake2b")
    data = bytearray(number % 251 for number in range(SIZE))
    leaves = digest.leaves_of(alg, memoryview(data), chunk=CHUNK)
    whole = bytearray(data) + leaves
    if damaged is not None:
        whole[damaged * CHUNK + 7] ^= 1
    root = digest.root(alg, leaves, len(whole))
    return stream.Shard(stream.Mapped(memoryview(whole)), len(whole), root, name="it", chunk=CHUNK), bytes(data)


def test_all_chunks_are_handed_on_once_whether_proved_before_or_after() -> None:
    shard, data = _shard()
    proved = threading.Semaphore(0)
    check = shard.check

    def counted(index: int, view: memoryview) -> None:
        check(index, view)
        proved.release()
    shard.check = counted  # type: ignore[method-assign]
    with Pump(whole(shard), workers=2) as pump:
        for _ in range(shard.chunks):
            assert proved.acquire(timeout=10)  # nobody has said where to
        assert bytes(pump.first()) == data[:CHUNK]
        taken = []
        pump.finish(lambda _, begin, view: taken.append((begin, bytes(view))))
    assert b"".join(part for _, part in sorted(taken)) == data and len(taken) == shard.chunks
    assert not proved.acquire(blocking=False)  # none was compared twice


@pytest.mark.parametrize("damaged", [0, 3])
def test_a_damaged_chunk_is_never_handed_on(damaged: int) -> None:
    shard, _ = _shard(damaged)
    taken = []
    with pytest.raises(DigestMismatch, match=f"bytes {damaged * CHUNK}"), \
            Pump(whole(shard), workers=2) as pump:
        pump.first()
        pump.finish(lambda _, begin, view: taken.append(begin))
    assert damaged * CHUNK not in taken


def test_who_leaves_without_a_word_waits_for_no_thread() -> None:
    shard, _ = _shard()
    with Pump(whole(shard), workers=2) as pump:
        pump.first()
    assert not any(thread.is_alive() for thread in pump._threads)
