"""Other streaming loaders over the same jsonl files.

    hyperpod-kit data bench SRC --rivals lab/programs/rivals/loaders.py

Each reads the same samples, decoded to dicts, shuffled, in lists of one batch. Those with a format of their own are
given a copy in it first, which is not timed.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterable, Iterator
from typing import Any

from torch.utils.data import DataLoader

SHUFFLED = 1000
"""Samples in the shuffle buffers of those that have one."""
PIECE = 64 << 20


def read_jsonl_samples(paths: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Every line of jsonl files."""
    for path in paths:
        with open(path, "rb") as stream:
            for line in stream:
                yield json.loads(line)


class HfStream:
    """`datasets`, streaming."""

    name, module = "HF datasets, streaming", "datasets"

    def prepare(self, paths: list[str], folder: str) -> None:
        """Reads the files as they are."""

    def loader(self, paths: list[str], folder: str, batch: int, workers: int) -> Iterable[Any]:
        from datasets import load_dataset

        stream = load_dataset("json", data_files=paths, split="train", streaming=True, cache_dir=folder)
        return DataLoader(
            stream.shuffle(seed=0, buffer_size=SHUFFLED), batch_size=batch, num_workers=workers, collate_fn=list
        )


class HfMap:
    """`datasets`, map-style: Arrow files of its own, mapped into memory."""

    name, module = "HF datasets, map-style", "datasets"

    def prepare(self, paths: list[str], folder: str) -> None:
        self._load_data(paths, folder)

    def loader(self, paths: list[str], folder: str, batch: int, workers: int) -> Iterable[Any]:
        return DataLoader(self._load_data(paths, folder), batch, shuffle=True, num_workers=workers, collate_fn=list)

    def _load_data(self, paths: list[str], folder: str) -> Any:
        from datasets import load_dataset

        return load_dataset("json", data_files=paths, split="train", cache_dir=os.path.join(folder, "map"))


class Webdataset:
    """`webdataset`: tars of one JSON file for each sample."""

    name, module = "webdataset", "webdataset"

    def prepare(self, paths: list[str], folder: str) -> None:
        import webdataset

        with webdataset.ShardWriter(
            os.path.join(folder, "%06d.tar"), maxsize=PIECE, maxcount=1 << 30, verbose=0
        ) as out:
            for number, sample in enumerate(read_jsonl_samples(paths)):
                out.write({"__key__": f"{number:09d}", "json": sample})

    def loader(self, paths: list[str], folder: str, batch: int, workers: int) -> Iterable[Any]:
        import webdataset

        shards = sorted(os.path.join(folder, name) for name in os.listdir(folder))
        stream = webdataset.WebDataset(shards, shardshuffle=len(shards), seed=0, empty_check=False)
        stream = stream.shuffle(SHUFFLED).decode().map(lambda sample: sample["json"])
        return DataLoader(stream, batch_size=batch, num_workers=workers, collate_fn=list)


class Mosaic:
    """`mosaicml-streaming`: its MDS shards."""

    name, module = "mosaicml-streaming", "streaming"

    def prepare(self, paths: list[str], folder: str) -> None:
        from streaming import MDSWriter

        with MDSWriter(out=folder, columns={"json": "json"}, size_limit=PIECE) as out:
            for sample in read_jsonl_samples(paths):
                out.write({"json": sample})

    def loader(self, paths: list[str], folder: str, batch: int, workers: int) -> Iterable[Any]:
        from streaming import StreamingDataset
        from streaming.base.util import clean_stale_shared_memory

        clean_stale_shared_memory()
        data = StreamingDataset(local=folder, shuffle=True, shuffle_seed=random.randrange(1 << 30), batch_size=batch)
        return DataLoader(data, batch_size=batch, num_workers=workers, collate_fn=list)


class Litdata:
    """`litdata`: its optimised chunks."""

    name, module = "litdata", "litdata"

    def prepare(self, paths: list[str], folder: str) -> None:
        from litdata.streaming.writer import BinaryWriter

        writer = BinaryWriter(folder, chunk_bytes=PIECE)
        for number, sample in enumerate(read_jsonl_samples(paths)):
            writer[number] = json.dumps(sample)
        writer.done()
        writer.merge(1)

    def loader(self, paths: list[str], folder: str, batch: int, workers: int) -> Iterable[Any]:
        from litdata import StreamingDataLoader, StreamingDataset

        data = StreamingDataset(folder, shuffle=True, seed=0, transform=json.loads)
        return StreamingDataLoader(data, batch_size=batch, num_workers=workers, collate_fn=list)


RIVALS = (Mosaic, Webdataset, Litdata, HfMap, HfStream)
