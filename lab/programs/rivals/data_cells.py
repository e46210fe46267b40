"""What data_rows.py measures: the corpora, and in which places and with how many workers each of them is read."""

from __future__ import annotations

import io
import itertools
import json
import os
import random
import tarfile
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple


class Corpus(NamedTuple):
    """Samples of an `id` and a `text`; those of tars of a `cls`, which is the number, and a `jpg`."""

    name: str
    what: str
    format: str
    samples: int
    batch: int
    files: int
    size: int
    """Letters of a text, bytes of an image."""
    row_group: int = 0


class Cell(NamedTuple):
    """A corpus as it is read."""

    corpus: str
    place: str
    """warm: in the page cache; cold: on the disk; s3: behind the rehearsal's server on loopback."""
    workers: int


CORPORA = {
    corpus.name: corpus
    for corpus in (
        Corpus("lines-1k", "lines of 1 KB", "jsonl", 65_536, 256, 4, 1000),
        Corpus("lines-8k", "lines of 8 KB", "jsonl", 12_800, 256, 4, 8000),
        Corpus("lines-64k", "lines of 64 KB", "jsonl", 2_048, 64, 4, 64_000),
        Corpus("rows-1000", "Parquet, row groups of 1,000", "parquet", 128_000, 256, 2, 1000, 1000),
        Corpus("rows-64000", "Parquet, row groups of 64,000", "parquet", 128_000, 256, 2, 1000, 64_000),
        Corpus("tars", "tars of 9 KB images", "tar", 8_192, 128, 4, 9000),
        Corpus("files-570k", "files of 570 KB, lines of 1.1 KB", "jsonl", 65_536, 256, 128, 1090),
        Corpus("files-100m", "files of 100 MB, lines of 1.1 KB", "jsonl", 188_416, 256, 2, 1090),
    )
}

_PLACES_AND_WORKERS = (("warm", 0), ("warm", 2), ("cold", 0), ("s3", 0), ("warm", 1), ("cold", 2), ("s3", 2))
CELLS = tuple(
    Cell(name, medium, workers) for (medium, workers), name in itertools.product(_PLACES_AND_WORKERS, CORPORA)
)
"""In the order in which they are measured: what the time does not reach comes in the next run."""


def shrink_corpus(corpus: Corpus, part: float) -> Corpus:
    """A smaller one, of whole batches."""
    batches = max(4, int(corpus.samples * part) // corpus.batch)
    return corpus._replace(samples=min(corpus.samples, batches * corpus.batch))


def sample_crc(number: int, text: bytes) -> int:
    """Of one sample; those of a corpus are added, so that its order is of no account."""
    return zlib.crc32(text, number & 0xFFFFFFFF) + number


def write_corpus(corpus: Corpus, folder: str) -> dict[str, Any]:
    """Write a corpus; returns what a loader that reads all of it finds: counts, sizes, check sums."""
    facts = {"samples": 0, "bytes": 0, "numbers": 0, "sum": 0}
    for file in range(corpus.files):
        numbers = range(file * corpus.samples // corpus.files, (file + 1) * corpus.samples // corpus.files)
        path = os.path.join(folder, f"{file:05d}.{corpus.format}")
        for number, text in _WRITERS[corpus.format](corpus, numbers, path):
            facts["samples"] += 1
            facts["bytes"] += len(text)
            facts["numbers"] += number
            facts["sum"] += sample_crc(number, text)
    return facts


def _make_text_generator(size: int) -> Any:
    """Number -> words, most of which nobody else has in this order."""
    rng = random.Random(7)
    vocabulary = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 9))) for _ in range(4000)]
    pool = " ".join(rng.choices(vocabulary, k=max(300_000, size // 2)))

    def text_of(number: int) -> str:
        at = number * 7919 % (len(pool) - size)
        return pool[at : at + size]

    return text_of


def _write_jsonl(corpus: Corpus, numbers: range, path: str) -> Iterator[tuple[int, bytes]]:
    text_of = _make_text_generator(corpus.size)
    with open(path, "w") as out:
        for number in numbers:
            text = text_of(number)
            out.write(json.dumps({"id": number, "text": text}) + "\n")
            yield number, text.encode()


def _write_parquet(corpus: Corpus, numbers: range, path: str) -> Iterator[tuple[int, bytes]]:
    import pyarrow
    import pyarrow.parquet

    text_of = _make_text_generator(corpus.size)
    texts = [text_of(number) for number in numbers]
    table = pyarrow.table({"id": list(numbers), "text": texts})
    pyarrow.parquet.write_table(table, path, row_group_size=corpus.row_group)
    yield from ((number, text.encode()) for number, text in zip(numbers, texts, strict=True))


def _write_tar(corpus: Corpus, numbers: range, path: str) -> Iterator[tuple[int, bytes]]:
    with tarfile.open(path, "w") as out:
        for number in numbers:
            image = random.Random(number).randbytes(corpus.size)
            for ending, body in (("cls", str(number).encode()), ("jpg", image)):
                member = tarfile.TarInfo(f"{number:08d}.{ending}")
                member.size = len(body)
                out.addfile(member, io.BytesIO(body))
            yield number, image


_WRITERS = {"jsonl": _write_jsonl, "parquet": _write_parquet, "tar": _write_tar}
