"""Rows of Parquet beside other loaders of the same files: processor time a row, first batch, memory.

    python lab/programs/rivals/parquet_rows.py --passes 5  # row groups of 1,000 and 64,000 rows of 1 KB

Each loader is a process of its own, in turn; medians. What it imports is imported before, and what the others make of
the files (Arrow's own format, litdata's chunks) is made before and not counted.
"""

from __future__ import annotations

import argparse
import glob
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from typing import Any

GROUPS = (1000, 64_000)
FILES, BATCH = 4, 256


def write_corpus(folder: str, rows: int, group: int) -> None:
    """Rows of an integer and a text of 1,000 letters in a few files, written as pyarrow writes them by itself."""
    import pyarrow
    import pyarrow.parquet

    rng = random.Random(7)
    vocabulary = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 9))) for _ in range(4000)]
    pool = " ".join(rng.choices(vocabulary, k=300_000))
    os.makedirs(folder)
    for file in range(FILES):
        numbers = range(file * rows // FILES, (file + 1) * rows // FILES)
        texts = [pool[at : at + 1000] for at in (number * 7919 % (len(pool) - 1000) for number in numbers)]
        table = pyarrow.table({"id": list(numbers), "text": texts})
        pyarrow.parquet.write_table(table, f"{folder}/{file:02d}.parquet", row_group_size=group)


class ElasticRows:
    """hyperpod_kit.data."""

    name, module = "ElasticLoader", "hyperpod_kit.data.loading.loader"

    def prepare(self, paths: list[str], folder: str) -> None:
        from hyperpod_kit.data.index.build import build_index

        build_index(paths, f"{folder}/index")

    def loader(self, paths: list[str], folder: str, workers: int) -> Iterable[Any]:
        from hyperpod_kit.data import ElasticLoader, IndexedDataset, SampleIndex

        data = IndexedDataset(SampleIndex.open(f"{folder}/index"))
        return ElasticLoader(data, BATCH, seed=1, num_workers=workers, collate_fn=list)


class HfMapRows:
    """`datasets`, map-style: a copy in Arrow's own format, which is mapped."""

    name, module = "HF datasets, map-style", "datasets"

    def prepare(self, paths: list[str], folder: str) -> None:
        self._load_data(paths, folder)

    def loader(self, paths: list[str], folder: str, workers: int) -> Iterable[Any]:
        from torch.utils.data import DataLoader

        return DataLoader(self._load_data(paths, folder), BATCH, shuffle=True, num_workers=workers, collate_fn=list)

    def _load_data(self, paths: list[str], folder: str) -> Any:
        from datasets import load_dataset

        return load_dataset("parquet", data_files=paths, split="train", cache_dir=folder)


class HfStreamRows:
    """`datasets`, streaming, a buffer of 1,000."""

    name, module = "HF datasets, streaming", "datasets"

    def prepare(self, paths: list[str], folder: str) -> None:
        """Reads the files as they are."""

    def loader(self, paths: list[str], folder: str, workers: int) -> Iterable[Any]:
        from datasets import load_dataset
        from torch.utils.data import DataLoader

        stream = load_dataset("parquet", data_files=paths, split="train", streaming=True, cache_dir=folder)
        return DataLoader(
            stream.shuffle(seed=0, buffer_size=1000), batch_size=BATCH, num_workers=workers, collate_fn=list
        )


class LitdataRows:
    """`litdata`: its optimised chunks of JSON."""

    name, module = "litdata", "litdata"

    def prepare(self, paths: list[str], folder: str) -> None:
        import pyarrow.parquet
        from litdata.streaming.writer import BinaryWriter

        writer = BinaryWriter(folder, chunk_bytes=64 << 20)
        number = 0
        for path in paths:
            for batch in pyarrow.parquet.ParquetFile(path).iter_batches():
                for row in batch_rows(batch):
                    writer[number] = json.dumps(row)
                    number += 1
        writer.done()
        writer.merge(1)

    def loader(self, paths: list[str], folder: str, workers: int) -> Iterable[Any]:
        from litdata import StreamingDataLoader, StreamingDataset

        data = StreamingDataset(folder, shuffle=True, seed=0, transform=json.loads)
        return StreamingDataLoader(data, batch_size=BATCH, num_workers=workers, collate_fn=list)


def batch_rows(batch: Any) -> Iterator[dict[str, Any]]:
    """The rows of a record batch."""
    yield from batch.to_pylist()


LOADERS = {kind.__name__: kind for kind in (ElasticRows, HfMapRows, HfStreamRows, LitdataRows)}


def measure_epoch_and_exit(kind: str, source: str, folder: str, workers: int) -> None:
    """Read an epoch in this process, print its figures and exit."""
    import pyarrow.parquet
    import torch.utils.data

    assert pyarrow.parquet and torch.utils.data  # imported before the time is taken
    loader = LOADERS[kind]()
    __import__(loader.module)
    paths = sorted(glob.glob(f"{source}/*.parquet"))
    spent, started_at = processor_seconds(), time.perf_counter()
    first, rows = 0.0, 0
    for batch in loader.loader(paths, folder, workers):
        if not first:
            first = time.perf_counter() - started_at
        rows += len(batch)
    wall = time.perf_counter() - started_at
    with open("/proc/self/status") as status:  # a new process has its parent's maximum in getrusage
        peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
    print(json.dumps([(processor_seconds() - spent) / rows * 1e6, first, rows / wall, peak / 1024]), flush=True)
    os._exit(0)  # what litdata leaves running


def processor_seconds() -> float:
    """Seconds of this process and of its children that have ended."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=list(LOADERS), choices=list(LOADERS))
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        kind, source, folder = args.measure
        return measure_epoch_and_exit(kind, source, folder, args.workers)
    os.environ["HF_HUB_OFFLINE"] = "1"
    kinds = [kind for kind in args.only if find_spec(LOADERS[kind].module.partition(".")[0])]
    with tempfile.TemporaryDirectory() as folder:
        for group in GROUPS:
            source = f"{folder}/{group}"
            write_corpus(source, args.rows, group)
            for kind in kinds:
                os.makedirs(f"{source}-{kind}")
                LOADERS[kind]().prepare(sorted(glob.glob(f"{source}/*.parquet")), f"{source}-{kind}")
        for group in GROUPS:
            source = f"{folder}/{group}"
            figures_by_kind: dict[str, list[list[float]]] = {kind: [] for kind in kinds}
            for _ in range(args.passes):
                for kind in kinds:
                    command = [sys.executable, __file__, "--workers", str(args.workers), "--measure", kind, source]
                    done = subprocess.run(
                        [*command, f"{source}-{kind}"], check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
                    )
                    figures_by_kind[kind].append(json.loads(done.stdout.splitlines()[-1]))
            for kind in kinds:
                each, first, rate, peak = map(statistics.median, zip(*figures_by_kind[kind], strict=True))
                print(
                    f"row groups of {group}, {LOADERS[kind].name}: {each:.1f} µs of processor a row (least "
                    f"{min(figures_by_kind[kind])[0]:.1f}), first batch {first:.2f} s, "
                    f"{rate:,.0f} rows/s, {peak:.0f} MiB",
                    flush=True,
                )


if __name__ == "__main__":
    main()
