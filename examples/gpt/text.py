"""Training text: all *.py files below a directory, packed into windows of bytes, read from where it lies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import world

from hyperpod_kit.data import ElasticLoader, IndexedDataset, PackedDataset, SampleIndex, order_of
from hyperpod_kit.data.index.build import build_index
from hyperpod_kit.errors import DataError


def index(folder: Path, place: str, limit: int, here: world.World) -> SampleIndex:
    """The index of the first files, in the order of their paths, up to `limit` bytes. Made by rank 0, once a run.

    Raises DataError when there is nothing, OSError when a mount does not answer.
    """
    if here.rank == 0:
        chosen, total = [], 0
        for path in sorted(folder.rglob("*.py")):
            if total >= limit:
                break
            chosen.append(str(path))
            total += path.stat().st_size
        if not chosen:
            raise DataError(f"no *.py below {folder}")
        build_index(chosen, place, format="whole")
    world.wait(here)
    return SampleIndex.open(place)


def loader(samples: SampleIndex, *, window: int, batch: int, seed: int, ledger: str, launch: str) -> ElasticLoader:
    """Batches of windows, int64 [batch, window]: each window of the text once an epoch, whoever is killed."""
    documents = IndexedDataset(samples)
    _, _, lengths = samples.where(np.arange(len(samples)))  # a byte is a token
    order = order_of(documents, seed=seed)
    packed = PackedDataset(documents, tokens, lengths.astype(np.uint32), window=window, order=order)
    return ElasticLoader(packed, batch, order=packed.windows, ledger=ledger, launch=launch)


def tokens(text: bytes) -> Any:
    """Bytes are the tokens."""
    return np.frombuffer(text, np.uint8)
