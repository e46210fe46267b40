"""What a layout of training data costs one process that reads it: windows of tokens, and large row groups of Parquet.

    python lab/programs/data_layouts.py windows     # 4096 tokens, out of Megatron's files with documents of 500 tokens
    python lab/programs/data_layouts.py row-groups  # 16 MB, in three orders

Out of the page cache, in seconds of processor time, which other work on the machine changes least.
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
from typing import Any

import numpy as np

from hyperpod_kit.data import ElasticLoader, IndexedDataset, MegatronTokens, PackedDataset, ShuffledOrder, order_of
from hyperpod_kit.data.index.build import build_index
from hyperpod_kit.data.tokens import megatron

TOKENS, WINDOW = 64 << 20, 4096
ROWS, GROUPS = 8000, 48


def processor_seconds() -> float:
    """Seconds of this process so far."""
    return sum(resource.getrusage(resource.RUSAGE_SELF)[:2])


def measure_windows(folder: str) -> None:
    """Write a Megatron corpus, read a shuffled epoch of windows and print the processor time of a window."""
    rng = np.random.default_rng(0)
    text = rng.integers(0, 60_000, 1 << 20)
    sizes = rng.integers(250, 750, TOKENS // 500).tolist()
    documents: Any = (text[size : 2 * size] for size in sizes)  # arrays, which go as sequences
    megatron.write_documents(os.path.join(folder, "c"), documents, 60_000)
    tokens = MegatronTokens(os.path.join(folder, "c"))
    order = order_of(tokens, 1)
    packed = PackedDataset(tokens, None, tokens.lengths, window=WINDOW, order=order)
    started_at = processor_seconds()
    for _ in ElasticLoader(packed, 8, order=packed.windows):
        pass
    each = (processor_seconds() - started_at) / len(packed)
    print(f"{len(packed)} windows of {WINDOW}: {each * 1e6:.0f} µs each, {WINDOW / each / 1e6:.1f} million tokens/s")


def measure_row_groups(folder: str) -> None:
    """Write Parquet files and print what three orders decode and read.

    The orders: the default, and those of 48 and of 8 lanes that know of no row groups.
    """
    import pyarrow
    import pyarrow.parquet

    rng = np.random.default_rng(0)
    for part in range(4):
        with pyarrow.parquet.ParquetWriter(
            os.path.join(folder, f"{part}.parquet"), pyarrow.schema([("text", pyarrow.binary())])
        ) as out:
            for _ in range(GROUPS // 4):
                out.write_table(pyarrow.table({"text": [rng.bytes(2000) for _ in range(ROWS)]}), row_group_size=ROWS)
    index = build_index([folder], os.path.join(folder, "index")).index
    counter = RowGroupCounter(pyarrow.parquet.ParquetFile)
    default = order_of(IndexedDataset(index), 1)
    for what, count, order in (
        ("block_for(), lanes=48", 640, ShuffledOrder(len(index), 1, index.block_for())),
        ("block_for(), lanes=8", 64_000, ShuffledOrder(len(index), 1, index.block_for(), 8)),
        (f"the default, block={default.block}, lanes={default.lanes}", len(index), default),
    ):
        data = IndexedDataset(index)
        counter.groups = received = 0
        started_at = processor_seconds()
        for batch in ElasticLoader(data, 64, order=order, collate_fn=list):
            received += len(batch)
            if received >= count:
                break
        print(
            f"{what}: {received} of {len(data)} samples: {counter.groups} of {GROUPS} row groups decoded, "
            f"{data.bytes_read >> 20} MiB read, {processor_seconds() - started_at:.1f} s"
        )


class RowGroupCounter:
    """How many row groups are decoded."""

    def __init__(self, files: Any) -> None:
        self.groups = 0
        real = files.read_row_group

        def read(*args: Any, **options: Any) -> Any:
            self.groups += 1
            return real(*args, **options)

        files.read_row_group = read


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=["windows", "row-groups"])
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        {"windows": measure_windows, "row-groups": measure_row_groups}[args.what](folder)


if __name__ == "__main__":
    main()
