"""What the data path does on this machine, beside a plain read and a plain DataLoader of the same files, in one run."""

from __future__ import annotations

import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from torch.utils.data import DataLoader, Dataset

from hyperpod_kit.data.dataset import IndexedDataset, decoded
from hyperpod_kit.data.index.build import build
from hyperpod_kit.data.index.layout import SampleIndex
from hyperpod_kit.data.loader import ElasticLoader

_PIECE = 4 << 20


class BenchRow(NamedTuple):
    """One figure: what was done, how many samples and bytes, in how many seconds."""

    what: str
    samples: int
    bytes: int
    seconds: float

    @property
    def rate(self) -> float:
        """Bytes a second."""
        return self.bytes / max(self.seconds, 1e-9)


class PlainLines(Dataset[Any]):
    """What people write themselves: offsets in memory, open, seek, readline, decode."""

    def __init__(self, index: SampleIndex, limit: int) -> None:
        order = random.Random(0).sample(range(index.samples), limit)
        files, starts, lengths = index.where(np.array(order))
        self._where = list(zip(files.tolist(), starts.tolist(), lengths.tolist(), strict=True))
        self._files = [index.file(number) for number in range(index.files)]

    def __len__(self) -> int:
        return len(self._where)

    def __getitem__(self, number: int) -> Any:
        file, start, length = self._where[number]
        with open(self._files[file].path, "rb") as stream:
            stream.seek(start)
            return decoded(stream.read(length), self._files[file], number, start)


def forget_pages(paths: list[str]) -> bool:
    """Have the kernel drop what it holds of these files, so that the next read is the disk's. False for objects."""
    if any(path.startswith("s3://") for path in paths):
        return False
    for path in paths:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(handle)
    return True


def bench(
    sources: list[str], *, limit: int, batch: int, workers: list[int], say: Callable[[str], None]
) -> Iterator[BenchRow]:
    """The figures, as they come. `limit`: samples for each loader."""
    with tempfile.TemporaryDirectory(prefix="hpk-data-bench-") as folder:
        say("making the index")
        index = build(sources, folder).index
        paths = [index.file(number).path for number in range(index.files)]
        stored = sum(index.file(number).size for number in range(index.files))
        if forget_pages(paths):
            say("reading all files one after another, cold")
            yield timed("sequential read, cold", index.samples, stored, lambda: read_all(paths))
            forget_pages(paths)
        os.unlink(os.path.join(folder, "index.json"))
        with tempfile.TemporaryDirectory(prefix="hpk-data-bench-") as again:
            say("indexing")
            yield timed("index, cold", index.samples, stored, lambda: build(sources, again))
        build(sources, folder)
        count = min(limit, index.samples) // batch * batch
        mean = index.bytes // max(1, index.samples)
        data = IndexedDataset(index)
        loader = ElasticLoader(data, batch, collate_fn=list)
        yield timed("first batch", batch, batch * mean, lambda: next(iter(loader)))
        for number in workers:
            if all(not path.startswith("s3://") for path in paths) and set(index.formats) == {"lines"}:
                plain = PlainLines(index, count)
                rival: DataLoader[Any] = DataLoader(plain, batch, collate_fn=list, num_workers=number)
                say(f"a plain DataLoader with {number} workers")
                yield timed(f"plain DataLoader, {number} workers", count, count * mean, partial(take, rival, count))
            loader = ElasticLoader(IndexedDataset(index), batch, collate_fn=list, num_workers=number)
            say(f"ElasticLoader with {number} workers")
            yield timed(f"ElasticLoader, {number} workers", count, count * mean, partial(take, loader, count))
        state = {**loader.state_dict(), "position": index.samples // 2}
        say("resuming in the middle")
        fresh = IndexedDataset(SampleIndex.open(folder))
        yield timed("resume to the first batch", batch, 0, lambda: resume(fresh, batch, state))._replace(
            bytes=fresh.bytes_read
        )


def resume(data: IndexedDataset, batch: int, state: dict[str, Any]) -> None:
    """A new loader at a position, and its first batch."""
    loader = ElasticLoader(data, batch, collate_fn=list)
    loader.load_state_dict(state)
    next(iter(loader))


def take(loader: Any, count: int) -> None:
    """So many samples."""
    done = 0
    for received in loader:
        done += len(received)
        if done >= count:
            return


def read_all(paths: list[str]) -> None:
    """Every byte, one file after another."""
    buffer = bytearray(_PIECE)
    for path in paths:
        with open(path, "rb", buffering=0) as stream:
            while stream.readinto(buffer):
                pass


def timed(what: str, samples: int, size: int, work: Callable[[], Any]) -> BenchRow:
    """Do it, and take the time."""
    begun = time.perf_counter()
    work()
    return BenchRow(what, samples, size, time.perf_counter() - begun)
