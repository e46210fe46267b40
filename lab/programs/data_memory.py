"""Whether the memory of a loader stays as it is, epoch after epoch, by the default order.

    python lab/programs/data_memory.py --epochs 10 --rows build/data-memory.jsonl  # lines, Parquet, tars; 0, 2 workers

Each case is a process of its own. After each epoch it notes what is its own (RssAnon) and its workers'. It appends a
row to `--rows`: MiB after each epoch, and how far the last is above the second, in percent.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import os
import re
import subprocess
import sys
import time

from data_orders import CORPORA, open_corpora_folder

CASES = list(itertools.product(("lines-1k", "parquet-1000", "tars"), (0, 2)))


def anonymous_bytes(pid: int) -> int:
    """Bytes of a process's own memory."""
    with open(f"/proc/{pid}/status") as status:
        match = re.search(r"RssAnon:\s+(\d+) kB", status.read())
    if match is None:
        return 0
    return int(match[1]) << 10


def print_memory_of_epochs(index_folder: str, workers: int, epoch_count: int) -> None:
    """Read epochs; print a line for each: bytes of this process, bytes of all its workers, seconds."""
    from hyperpod_kit.data import ElasticLoader, IndexedDataset, SampleIndex

    data = IndexedDataset(SampleIndex.open(index_folder))
    loader = ElasticLoader(data, 256, collate_fn=list, num_workers=workers, persistent_workers=workers > 0)
    for _ in range(epoch_count):
        started_at = time.perf_counter()
        for _batch in loader:
            pass
        gc.collect()
        with open(f"/proc/self/task/{os.getpid()}/children") as children:
            worker_bytes = sum(anonymous_bytes(int(word)) for word in children.read().split())
        print(anonymous_bytes(os.getpid()), worker_bytes, time.perf_counter() - started_at, flush=True)


def main() -> None:
    from hyperpod_kit.data.index.build import build_index

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--mib", type=int, default=192, help="of each corpus")
    parser.add_argument("--rows", help="a file to which each case appends a row of JSON")
    parser.add_argument("--folder", help="where the corpora are made; default: one that is removed")
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        return print_memory_of_epochs(args.measure[0], int(args.measure[1]), args.epochs)
    with open_corpora_folder(args.folder) as folder:
        for what, workers in CASES:
            corpus_folder = f"{folder}/{what}-{args.mib}"
            if not os.path.isdir(corpus_folder):
                os.makedirs(corpus_folder)
                CORPORA[what](corpus_folder, args.mib)
            index = build_index([corpus_folder], f"{folder}/index-{what}-{args.mib}").index.folder
            command = [sys.executable, __file__, "--epochs", str(args.epochs), "--measure", index, str(workers)]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            lines = [line.split() for line in done.stdout.splitlines()]
            mib = [(int(line[0]) + int(line[1])) >> 20 for line in lines]
            above = 0.0
            if len(mib) > 1:
                above = (mib[-1] - mib[1]) / mib[1]
            row = {"corpus": what, "mib": args.mib, "workers": workers, "after": mib, "above": round(100 * above, 1)}
            print(f"{what}, {workers} workers: {mib} MiB, the last is {above:+.1%} of the second", flush=True)
            if args.rows:
                with open(args.rows, "a") as rows:
                    rows.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
