"""What an order costs beside another one: processor and wall time of a sample, the first batch, memory, how it mixes.

    python lab/programs/data_orders.py lines-1k parquet-1000 s3 --passes 5      # the default order, and that of 0.1.0
    python lab/programs/data_orders.py lines-1k --orders spread:384:256 shuffled:480:256 --cold --workers 2

An order is its kind, its lanes and the KiB of a block. The orders take turns in one process, each time with a loader
and a data set that are new, and each figure is the median; ratios are of neighbours in time. `--cold`: the kernel
forgets the files of the corpus before each turn. `s3`: from the rehearsal's own S3 on loopback, another process.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import logging
import os
import random
import re
import resource
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import boto3

from hyperpod_kit.data import ElasticLoader, IndexedDataset, SampleIndex, ShuffledOrder
from hyperpod_kit.data.index.build import build_index
from hyperpod_kit.data.mixing import measure_mixing
from hyperpod_kit.data.order.spread_order import SpreadOrder
from hyperpod_kit.system import page_cache

BATCH = 256
PREVIOUS_DEFAULT = "shuffled:48:1024"
KINDS = {"shuffled": ShuffledOrder, "spread": SpreadOrder}

SERVER = """
import sys
from pathlib import Path
from hyperpod_rehearsal.credentials.keys import Key
from hyperpod_rehearsal.s3.store import StoredBuckets
from hyperpod_rehearsal.server import serve
server = serve([("127.0.0.1", 0)], StoredBuckets(Path(sys.argv[1])), None, keys={"test": Key("test", "test")})
print(server.url, flush=True)
sys.stdin.read()
"""


class Turn(NamedTuple):
    """What one loader took."""

    processor: float
    """Seconds a sample, of this process and its workers."""
    wall: float
    first: float
    """Seconds to the first batch."""
    anon: int
    """MiB of this process's own memory at the end."""
    workers: int
    """The same of all its workers together."""


def generate_texts(size: int) -> Iterator[str]:
    """Texts of so many letters."""
    rng = random.Random(7)
    vocabulary = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 9))) for _ in range(4000)]
    pool = " ".join(rng.choices(vocabulary, k=300_000))
    for number in itertools.count():
        at = number * 7919 % (len(pool) - size)
        yield pool[at : at + size]


def write_jsonl_corpus(folder: str, mib: int, size: int) -> None:
    """Write lines of an id and a text of `size` bytes into four files."""
    texts = generate_texts(size)
    for file in range(4):
        with open(f"{folder}/{file}.jsonl", "w") as out:
            for number in range((mib << 20) // 4 // (size + 30)):
                out.write(f'{{"id": {number}, "text": "{next(texts)}"}}\n')


def write_parquet_corpus(folder: str, mib: int, rows: int) -> None:
    """Write rows of 1 KB in row groups of `rows` into four files."""
    import pyarrow
    import pyarrow.parquet

    texts = generate_texts(1000)
    for file in range(4):
        count = (mib << 20) // 4 // 1008
        table = pyarrow.table({"id": list(range(count)), "text": [next(texts) for _ in range(count)]})
        pyarrow.parquet.write_table(table, f"{folder}/{file}.parquet", row_group_size=rows)


def write_tar_corpus(folder: str, mib: int, size: int) -> None:
    """Write files of `size` bytes into tars of 64 MiB."""
    texts = generate_texts(size)
    for number in range(max(1, mib // 64)):
        with tarfile.open(f"{folder}/{number}.tar", "w") as out:
            for file in range((64 << 20) // (size + 1024)):
                facts = tarfile.TarInfo(f"{number:03d}/{file:06d}.txt")
                facts.size = size
                out.addfile(facts, io.BytesIO(next(texts).encode()))


def write_file_corpus(folder: str, mib: int, size: int) -> None:
    """Write files of `size` bytes."""
    texts = generate_texts(size)
    for number in range((mib << 20) // size):
        with open(f"{folder}/{number:06d}.jpg", "w") as out:
            out.write(next(texts))


CORPORA: dict[str, Callable[[str, int], None]] = {
    "lines-1k": lambda folder, mib: write_jsonl_corpus(folder, mib, 1000),
    "lines-8k": lambda folder, mib: write_jsonl_corpus(folder, mib, 8000),
    "lines-64k": lambda folder, mib: write_jsonl_corpus(folder, mib, 64_000),
    "parquet-1000": lambda folder, mib: write_parquet_corpus(folder, mib, 1000),
    "parquet-64000": lambda folder, mib: write_parquet_corpus(folder, mib, 64_000),
    "tars": lambda folder, mib: write_tar_corpus(folder, mib, 8000),
    "whole": lambda folder, mib: write_file_corpus(folder, mib, 570_000),
    "s3": lambda folder, mib: write_jsonl_corpus(folder, mib, 1000),
    "s3-8k": lambda folder, mib: write_jsonl_corpus(folder, mib, 8000),
}


def parse_order(name: str, index: SampleIndex) -> Any:
    """Return the order that `kind:lanes:KiB` describes, None for the default."""
    if name == "default":
        return None
    kind, lanes, kib = name.split(":")
    return KINDS[kind](index.samples, 1, index.block_for(int(kib) << 10), int(lanes))


def processor_seconds() -> float:
    """Seconds of this process and of its children that have ended."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def anonymous_bytes(pid: int | str) -> int:
    """Bytes of a process's own memory."""
    with open(f"/proc/{pid}/status") as status:
        match = re.search(r"RssAnon:\s+(\d+) kB", status.read())
    if match is None:
        return 0
    return int(match[1]) << 10


def measure_turn(index: SampleIndex, name: str, count: int, workers: int) -> Turn:
    """Read `count` samples with a new loader and return what that took."""
    data = IndexedDataset(SampleIndex.open(index.folder))
    spent, started_at = processor_seconds(), time.perf_counter()
    options: dict[str, Any] = {"collate_fn": list, "num_workers": workers}
    loader = ElasticLoader(data, BATCH, order=parse_order(name, index), **options)
    first, done, self_bytes, worker_bytes = 0.0, 0, 0, 0
    batches = iter(loader)
    for batch in batches:
        if not first:
            first = time.perf_counter() - started_at
        done += len(batch)
        if done >= count:
            self_bytes = anonymous_bytes("self")
            if workers:
                worker_bytes = sum(map(anonymous_bytes, child_pids(os.getpid())))
            break
    wall = time.perf_counter() - started_at
    del batches, loader  # workers end, and are counted
    return Turn((processor_seconds() - spent) / done, wall / done, first, self_bytes >> 20, worker_bytes >> 20)


def child_pids(pid: int) -> list[int]:
    """The children of a process."""
    with open(f"/proc/{pid}/task/{pid}/children") as children:
        return [int(word) for word in children.read().split()]


@contextlib.contextmanager
def serve_corpus(directory: str) -> Iterator[str]:
    """A bucket of S3 on loopback with the files of a directory."""
    with tempfile.TemporaryDirectory(dir=os.path.dirname(directory)) as folder:
        command = [sys.executable, "-c", SERVER, folder]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None and server.stdin is not None
            os.environ["AWS_ENDPOINT_URL"] = server.stdout.readline().strip()
            os.environ.update(AWS_ACCESS_KEY_ID="test", AWS_SECRET_ACCESS_KEY="test", AWS_DEFAULT_REGION="us-east-1")
            try:
                client = boto3.client("s3")
                client.create_bucket(Bucket="corpus")
                for entry in os.scandir(directory):
                    client.upload_file(entry.path, "corpus", entry.name)
                yield "s3://corpus"
            finally:
                server.stdin.close()


def open_corpora_folder(folder: str | None) -> contextlib.AbstractContextManager[str]:
    """Return the folder of the corpora; with None, one that is removed."""
    if folder is None:
        return tempfile.TemporaryDirectory()
    return contextlib.nullcontext(folder)


def open_corpus_source(what: str, directory: str) -> contextlib.AbstractContextManager[str]:
    """Return where a corpus is read: in its directory, or in S3."""
    if what.startswith("s3"):
        return serve_corpus(directory)
    return contextlib.nullcontext(directory)


def measure_and_print_corpus(what: str, args: argparse.Namespace, folder: str) -> None:
    """The table of one corpus."""
    directory = f"{folder}/{what}"
    if not os.path.isdir(directory):
        os.makedirs(directory)
        CORPORA[what](directory, args.mib)
        os.sync()
    with open_corpus_source(what, directory) as source:
        index = build_index([source], f"{folder}/index-{what}").index
        count = min(args.samples or index.samples, index.samples) // BATCH * BATCH
        paths = [entry.path for entry in os.scandir(directory) if entry.is_file()]
        turns_by_order: dict[str, list[Turn]] = {name: [] for name in args.orders}
        if not args.cold:
            with open(os.devnull, "wb") as sink:
                for path in paths:
                    with open(path, "rb") as stream:
                        sink.write(stream.read())
        for _ in range(args.passes):
            for name in args.orders:
                if args.cold:
                    page_cache.drop_cached_pages(paths)
                turns_by_order[name].append(measure_turn(index, name, count, args.workers))
    place = "out of the page cache"
    if args.cold:
        place = "cold"
    print(
        f"{what}: {count} of {index.samples} samples, {index.bytes >> 20} MiB, {args.passes} passes, "
        f"{args.workers} workers, {place}"
    )
    base = turns_by_order[args.orders[0]]
    for name, turns in turns_by_order.items():
        loader = ElasticLoader(IndexedDataset(index), BATCH, order=parse_order(name, index))
        middle = Turn(*(statistics.median(values) for values in zip(*turns, strict=True)))
        least = min(loader_turn.processor for loader_turn in turns) / min(loader_turn.processor for loader_turn in base)
        ratios = [statistics.median(a[n] / b[n] for a, b in zip(turns, base, strict=True)) for n in range(2)]
        print(
            f"  {name:18} {middle.processor * 1e6:8.1f} µs of processor ({ratios[0]:.2f}; least {least:.2f}), "
            f"{middle.wall * 1e6:8.1f} µs ({ratios[1]:.2f}), first batch {middle.first:.2f} s, {middle.anon:.0f} MiB, "
            f"workers {middle.workers:.0f} MiB, mixes {measure_mixing(loader.sample_order).share_of_uniform:.0%}",
            flush=True,
        )


def main() -> None:
    logging.getLogger("hyperpod_kit.data").setLevel(logging.ERROR)  # loops that are left
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("corpora", nargs="+", choices=list(CORPORA))
    parser.add_argument("--orders", nargs="+", default=[PREVIOUS_DEFAULT, "default"])
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--samples", type=int, help="of each turn; default: an epoch")
    parser.add_argument("--mib", type=int, default=512, help="of each corpus")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--folder", help="where the corpora are made, or are already; default: one that is removed")
    args = parser.parse_args()
    with open_corpora_folder(args.folder) as folder:
        for what in args.corpora:
            measure_and_print_corpus(what, args, folder)


if __name__ == "__main__":
    main()
