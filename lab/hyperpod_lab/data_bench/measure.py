"""What the data path does on this machine, beside a plain read and other loaders of the same files, in one run."""

from __future__ import annotations

import gc
import os
import random
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from typing import Any, NamedTuple, Protocol

import numpy as np
from torch.utils.data import DataLoader, Dataset

from hyperpod_kit.data.dataset import IndexedDataset
from hyperpod_kit.data.index.build import build_index
from hyperpod_kit.data.index.layout import SampleIndex
from hyperpod_kit.data.index.records import decode_record
from hyperpod_kit.data.loading.loader import ElasticLoader
from hyperpod_kit.errors import UsageError
from hyperpod_kit.system import page_cache
from hyperpod_kit.untrusted import by_descriptor, source_owner

_PIECE = 4 << 20


class BenchRow(NamedTuple):
    """One figure: what was done, how many samples and bytes, in how many seconds, and of the processor in how many, by
    this process and by those that it has started and that have ended."""

    what: str
    samples: int
    bytes: int
    seconds: float
    processor: float = 0.0

    @property
    def bytes_per_second(self) -> float:
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
        with open(self._files[file].path, "rb", opener=source_owner.open_nonblocking_as_source_owner) as stream:
            stream.seek(start)
            return decode_record(stream.read(length), self._files[file], number, start)


def forget_pages(paths: Sequence[str]) -> bool:
    """Have the kernel drop these files from the page cache, so that the next read is the disk's; False for
    objects."""
    if any(path.startswith("s3://") for path in paths):
        return False
    with source_owner.thread_acting_as_source_owner():
        page_cache.drop_cached_pages(paths)
    return True


def bench(
    sources: list[str],
    *,
    limit: int,
    batch: int,
    workers: list[int],
    say: Callable[[str], None],
    passes: int = 1,
    rivals: Sequence[Rival] = (),
) -> Iterator[BenchRow]:
    """Measure the data path, plain reads and rivals, and yield a row for each figure.

    `limit`: samples for each loader. With several passes all take their turns in each, and the figure is the
    median.
    """
    with tempfile.TemporaryDirectory(prefix="hpk-data-bench-") as folder:
        say("making the index")
        index = build_index(sources, folder).index
        paths = [index.file(number).path for number in range(index.files)]
        stored = sum(index.file(number).size for number in range(index.files))
        count = min(limit, index.samples) // batch * batch
        mean = index.bytes // max(1, index.samples)
        turns: list[Turn] = []
        if forget_pages(paths):
            turns.append(Turn("sequential read, cold", index.samples, stored, partial(read_all, paths), paths))
            raw = partial(consume_from_new_loader, partial(raw_loader, index, batch), count)
            turns.append(Turn("ElasticLoader, not decoded, cold", count, count * mean, raw, paths))
        turns.append(Turn("index, cold", index.samples, stored, partial(rebuild_index, sources), paths))
        yield from measure_turns(turns, passes, say)
        data = IndexedDataset(index)
        yield time_call(
            "first batch", batch, batch * mean, lambda: next(iter(ElasticLoader(data, batch, collate_fn=list)))
        )
        plain = set(index.formats) == {"lines"} and not any(path.startswith("s3://") for path in paths)
        turns = []
        if plain:
            turns.append(Turn("sequential read", index.samples, stored, partial(read_all, paths)))
        for number in workers:
            for name, make in loader_factories(index, batch, number, count, plain):
                consume = partial(consume_from_new_loader, make, count)
                turns.append(Turn(f"{name}, {number} workers", count, count * mean, consume))
        for rival_number, rival in enumerate(rivals):
            obstacle = reason_not_measurable(rival, plain)
            if obstacle:
                yield BenchRow(f"{rival.name}: {obstacle}", 0, 0, 0.0)
                continue
            copy_directory = os.path.join(folder, f"{rival_number}-{rival.module}")
            by_descriptor.make_directory(copy_directory)
            say(f"a copy for {rival.name}")
            try:
                rival.prepare(paths, copy_directory)
            except Exception as err:  # of its library, which may not even be whole
                yield BenchRow(f"{rival.name}: {first_error_line(err)}", 0, 0, 0.0)
                continue
            turns += [
                Turn(
                    f"{rival.name}, {number} workers",
                    count,
                    count * mean,
                    partial(
                        consume_from_new_loader, partial(rival.loader, paths, copy_directory, batch, number), count
                    ),
                )
                for number in workers
            ]
        yield from measure_turns(turns, passes, say)
        state = {**ElasticLoader(data, batch).state_dict(), "position": index.samples // 2}
        say("resuming in the middle")
        fresh = IndexedDataset(SampleIndex.open(folder))
        yield time_call(
            "resume to the first batch", batch, 0, lambda: load_first_batch_from(fresh, batch, state)
        )._replace(bytes=fresh.bytes_read)


class Rival(Protocol):
    """Another loader: lab/programs/rivals/loaders.py."""

    name: str
    module: str

    def prepare(self, paths: list[str], folder: str) -> None:
        """Write a copy in its own format, where it has one."""

    def loader(self, paths: list[str], folder: str, batch: int, workers: int) -> Iterable[Any]:
        """Batches of decoded samples, shuffled."""


class Turn(NamedTuple):
    """Something to measure. `cold`: files that the kernel is to forget before."""

    what: str
    samples: int
    bytes: int
    work: Callable[[], Any]
    cold: Sequence[str] = ()


def load_rivals(path: str) -> list[Rival]:
    """Import a file and return the rivals that it defines. Raises UsageError."""
    spec = spec_from_file_location("hpk_rivals", path)
    if spec is None or spec.loader is None or not os.path.isfile(path):
        raise UsageError(f"--rivals {path}: expected a file of Python such as lab/programs/rivals/loaders.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return [kind() for kind in module.RIVALS]


def reason_not_measurable(rival: Rival, are_local_line_files: bool) -> str:
    """Return why a rival cannot be measured on these sources, or ""."""
    if not are_local_line_files:
        return "reads no such files"
    if find_spec(rival.module) is None:
        return "not installed"
    return ""


def measure_turns(turns: list[Turn], passes: int, say: Callable[[str], None]) -> Iterator[BenchRow]:
    """Measure all turns in each pass and yield the median of each; one that raises is reported and left out."""
    rows_by_turn: dict[str, list[BenchRow]] = {turn.what: [] for turn in turns}
    failed: dict[str, str] = {}
    for number in range(passes):
        for turn in turns:
            if turn.what in failed:
                continue
            if passes == 1:
                say(turn.what)
            else:
                say(f"{turn.what}: {number + 1} of {passes}")
            if turn.cold:
                forget_pages(turn.cold)
            try:
                rows_by_turn[turn.what].append(time_call(turn.what, turn.samples, turn.bytes, turn.work))
            except Exception as err:
                failed[turn.what] = first_error_line(err)
    for turn in turns:
        if turn.what in failed:
            yield BenchRow(f"{turn.what}: {failed[turn.what]}", 0, 0, 0.0)
        else:
            rows = rows_by_turn[turn.what]
            yield rows[0]._replace(
                seconds=statistics.median(row.seconds for row in rows),
                processor=statistics.median(row.processor for row in rows),
            )


def first_error_line(err: Exception) -> str:
    """Return the type and the first line of an error."""
    return f"{type(err).__name__}: {(str(err).strip().splitlines() or [''])[0][:200]}"


def loader_factories(
    index: SampleIndex, batch: int, workers: int, count: int, plain: bool
) -> Iterator[tuple[str, Callable[[], Iterable[Any]]]]:
    """Yield (name, function that makes the loader) of the loaders that are always measured."""
    options: dict[str, Any] = {"collate_fn": list, "num_workers": workers}
    if plain:
        yield "plain DataLoader", lambda: DataLoader(PlainLines(index, count), batch, **options)
    yield "ElasticLoader", lambda: ElasticLoader(IndexedDataset(index), batch, **options)
    yield "ElasticLoader, not decoded", lambda: ElasticLoader(IndexedDataset(index, decode=False), batch, **options)


def raw_loader(index: SampleIndex, batch: int) -> ElasticLoader:
    """Return a loader of the bytes of samples, by a data set that has nothing in memory."""
    return ElasticLoader(IndexedDataset(index, decode=False), batch, collate_fn=list)


def rebuild_index(sources: list[str]) -> None:
    """Build an index from nothing, in a temporary directory."""
    with tempfile.TemporaryDirectory(prefix="hpk-data-bench-") as folder:
        build_index(sources, folder)


def consume_from_new_loader(make: Callable[[], Iterable[Any]], count: int) -> None:
    """Make a loader and read `count` samples from it."""
    consume_samples(make(), count)


def load_first_batch_from(data: IndexedDataset, batch: int, state: dict[str, Any]) -> None:
    """Make a loader at a saved position and read its first batch."""
    loader = ElasticLoader(data, batch, collate_fn=list)
    loader.load_state_dict(state)
    next(iter(loader))


def consume_samples(loader: Any, count: int) -> None:
    """Read at least `count` samples from a loader and drop them."""
    done = 0
    for received in loader:
        done += len(received)
        if done >= count:
            return


def read_all(paths: list[str]) -> None:
    """Read every byte, one file after another, and drop it."""
    buffer = bytearray(_PIECE)
    for path in paths:
        with open(path, "rb", buffering=0, opener=source_owner.open_nonblocking_as_source_owner) as stream:
            while stream.readinto(buffer):
                pass


def time_call(what: str, samples: int, size: int, work: Callable[[], Any]) -> BenchRow:
    """Call `work` and return its wall-clock and processor seconds as a row."""
    self_seconds, child_seconds = _processor_seconds(resource.RUSAGE_SELF), _processor_seconds(resource.RUSAGE_CHILDREN)
    started_at = time.perf_counter()
    work()
    seconds = time.perf_counter() - started_at
    self_seconds = _processor_seconds(resource.RUSAGE_SELF) - self_seconds
    gc.collect()  # workers end with the iterator that nobody has any more
    return BenchRow(
        what, samples, size, seconds, self_seconds + _processor_seconds(resource.RUSAGE_CHILDREN) - child_seconds
    )


def _processor_seconds(whose: int) -> float:
    """Return the processor seconds of this process, or of its children that have ended."""
    used = resource.getrusage(whose)
    return used.ru_utime + used.ru_stime
