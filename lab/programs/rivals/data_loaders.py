"""The loaders that data_rows.py measures: ours and five others, each as its documentation has it used.

What has a format of its own gets a copy in it, with a column for each field, which is not timed. All give lists of one
batch, shuffled, of samples with the fields that the corpus has.
"""

from __future__ import annotations

import glob
import json
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from data_cells import Corpus

SHUFFLED = 1000
"""Samples in the shuffle buffers of those that have one."""
PIECE = 64 << 20
BUCKET = "corpora"
KEY = SECRET = "test"


class Source(NamedTuple):
    """Where a corpus lies: its files, and a loader's copy of it; in s3:// where it is read from there. `local`: the
    copy on the disk, of which that one was made."""

    paths: list[str]
    copy: str
    local: str

    @property
    def is_remote(self) -> bool:
        """Whether it is read from S3."""
        return self.copy.startswith("s3://")


def read_samples(corpus: Corpus, paths: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Every sample, in order."""
    for path in paths:
        if corpus.format == "jsonl":
            with open(path, "rb") as stream:
                yield from map(json.loads, stream)
        elif corpus.format == "parquet":
            import pyarrow.parquet

            for some in pyarrow.parquet.ParquetFile(path).iter_batches(1000):
                yield from some.to_pylist()
        else:
            import tarfile

            with tarfile.open(path) as members:
                bodies = (members.extractfile(member).read() for member in members)
                yield from ({"cls": number, "jpg": image} for number, image in zip(bodies, bodies, strict=True))


def collate_as_list(batch: Any) -> list[Any]:
    """What a DataLoader puts together: a list."""
    return list(batch)


class Loader:
    """One of them. `modules`: what is imported before the time is taken. `extra`: a folder below that of the rivals'
    packages which it alone needs. `copies`: whether it reads a copy of its own from S3."""

    name = distribution = extra = ""
    modules: tuple[str, ...] = ()
    copies = False

    def refusal(self, corpus: Corpus, medium: str) -> str:
        """Why it does not read this; empty where it does."""
        return ""

    def prepare(self, corpus: Corpus, source: Source) -> None:
        """Write a copy in its own format, where it has one."""

    def batches(self, corpus: Corpus, source: Source, workers: int) -> Iterable[list[Any]]:
        """A new loader."""
        raise NotImplementedError

    def sample_number_and_content(self, corpus: Corpus, sample: Any) -> tuple[int, Any]:
        """Its number, and its text or image."""
        if corpus.format == "tar":
            return int(sample["cls"]), sample["jpg"]
        return sample["id"], sample["text"]


class Elastic(Loader):
    """hyperpod_kit.data."""

    name = "ElasticLoader"
    modules = ("hyperpod_kit.data.loading.loader", "hyperpod_kit.data.dataset", "hyperpod_kit.data.index.build")

    def prepare(self, corpus: Corpus, source: Source) -> None:
        from hyperpod_kit.data.index.build import build_index

        build_index(source.paths, self._index_folder(source))

    def batches(self, corpus: Corpus, source: Source, workers: int) -> Iterable[list[Any]]:
        from hyperpod_kit.data import ElasticLoader, IndexedDataset, SampleIndex

        data = IndexedDataset(SampleIndex.open(self._index_folder(source)))
        return ElasticLoader(data, corpus.batch, seed=1, num_workers=workers, collate_fn=collate_as_list)

    def _index_folder(self, source: Source) -> str:
        if source.is_remote:
            return os.path.join(source.local, "index-s3")
        return os.path.join(source.local, "index")


class HfMap(Loader):
    """`datasets`, map-style: Arrow files of its own, mapped into memory."""

    name, distribution, modules = "HF map-style", "datasets", ("datasets",)

    def refusal(self, corpus: Corpus, medium: str) -> str:
        if medium == "s3":
            return "reads S3 only by making its local copy: see the local rows"
        return ""

    def prepare(self, corpus: Corpus, source: Source) -> None:
        self._load_data(corpus, source)

    def batches(self, corpus: Corpus, source: Source, workers: int) -> Iterable[list[Any]]:
        from torch.utils.data import DataLoader

        data = self._load_data(corpus, source)
        return DataLoader(data, corpus.batch, shuffle=True, num_workers=workers, collate_fn=collate_as_list)

    def sample_number_and_content(self, corpus: Corpus, sample: Any) -> tuple[int, Any]:
        if corpus.format == "tar":
            return int(sample["cls"]), sample["jpg"]["bytes"]
        return sample["id"], sample["text"]

    def _load_data(self, corpus: Corpus, source: Source, **options: Any) -> Any:
        from datasets import Image, load_dataset

        kind = {"jsonl": "json", "parquet": "parquet", "tar": "webdataset"}[corpus.format]
        options["cache_dir"] = os.path.join(source.local, "arrow")
        data = load_dataset(kind, data_files=source.paths, split="train", **options)
        if corpus.format == "tar":
            return data.cast_column("jpg", Image(decode=False))
        return data


class HfStream(HfMap):
    """`datasets`, streaming."""

    name, extra = "HF stream", "s3fs"

    def refusal(self, corpus: Corpus, medium: str) -> str:
        return ""

    def prepare(self, corpus: Corpus, source: Source) -> None:
        """Reads the files as they are."""

    def batches(self, corpus: Corpus, source: Source, workers: int) -> Iterable[list[Any]]:
        from torch.utils.data import DataLoader

        options: dict[str, Any] = {"streaming": True}
        if source.is_remote:
            region = {"region_name": "us-east-1"}
            where = {"key": KEY, "secret": SECRET, "endpoint_url": os.environ["AWS_ENDPOINT_URL"]}
            options["storage_options"] = {**where, "client_kwargs": region}
        stream = self._load_data(corpus, source, **options).shuffle(seed=0, buffer_size=SHUFFLED)
        return DataLoader(stream, batch_size=corpus.batch, num_workers=workers, collate_fn=collate_as_list)


class Litdata(Loader):
    """`litdata`: its optimised chunks."""

    name, distribution, modules = "litdata", "litdata", ("litdata",)
    copies = True

    def prepare(self, corpus: Corpus, source: Source) -> None:
        from litdata.streaming.writer import BinaryWriter

        writer = BinaryWriter(source.copy, chunk_bytes=PIECE)
        for number, sample in enumerate(read_samples(corpus, source.paths)):
            writer[number] = sample
        writer.done()
        writer.merge(1)

    def batches(self, corpus: Corpus, source: Source, workers: int) -> Iterable[list[Any]]:
        from litdata import StreamingDataLoader, StreamingDataset

        options: dict[str, Any] = {}
        if source.is_remote:
            from litdata.streaming import downloader

            downloader._OBSTORE_CLIENT_OPTIONS = {**downloader._OBSTORE_CLIENT_OPTIONS, "allow_http": True}
            keys = {"aws_access_key_id": KEY, "aws_secret_access_key": SECRET}
            options = {
                "cache_dir": tempfile.mkdtemp(),
                "storage_options": {"endpoint_url": os.environ["AWS_ENDPOINT_URL"], **keys},
            }
        data = StreamingDataset(source.copy, shuffle=True, seed=0, **options)
        return StreamingDataLoader(data, batch_size=corpus.batch, num_workers=workers, collate_fn=collate_as_list)


class Mosaic(Loader):
    """`mosaicml-streaming`: its MDS shards."""

    name, distribution, modules = "mosaicml-streaming", "mosaicml-streaming", ("streaming", "streaming.base.util")
    copies = True

    def prepare(self, corpus: Corpus, source: Source) -> None:
        from streaming import MDSWriter

        columns = {"id": "int", "text": "str"}
        if corpus.format == "tar":
            columns = {"cls": "bytes", "jpg": "bytes"}
        with MDSWriter(out=source.copy, columns=columns, size_limit=PIECE) as out:
            for sample in read_samples(corpus, source.paths):
                out.write(sample)

    def batches(self, corpus: Corpus, source: Source, workers: int) -> Iterable[list[Any]]:
        from streaming import StreamingDataset
        from streaming.base.util import clean_stale_shared_memory
        from torch.utils.data import DataLoader

        clean_stale_shared_memory()
        where = {"local": source.copy}
        if source.is_remote:
            where = {"remote": source.copy, "local": tempfile.mkdtemp()}
        seed = random.randrange(1 << 30)
        data = StreamingDataset(**where, shuffle=True, shuffle_seed=seed, batch_size=corpus.batch)
        return DataLoader(data, batch_size=corpus.batch, num_workers=workers, collate_fn=collate_as_list)


class Webdataset(Loader):
    """`webdataset`: tars as they are, else tars of one JSON file for each sample."""

    name, distribution, modules = "webdataset", "webdataset", ("webdataset",)
    copies = True

    def refusal(self, corpus: Corpus, medium: str) -> str:
        if medium == "s3" and not self._find_aws_command():
            return "reads S3 through the aws command, which is not here"
        return ""

    def prepare(self, corpus: Corpus, source: Source) -> None:
        import webdataset

        if corpus.format == "tar":
            for path in source.paths:
                os.symlink(path, os.path.join(source.copy, os.path.basename(path)))
            return
        pattern = os.path.join(source.copy, "%06d.tar")
        with webdataset.ShardWriter(pattern, maxsize=PIECE, maxcount=1 << 30, verbose=0) as out:
            for number, sample in enumerate(read_samples(corpus, source.paths)):
                out.write({"__key__": f"{number:09d}", "json": sample})

    def batches(self, corpus: Corpus, source: Source, workers: int) -> Iterable[list[Any]]:
        import webdataset
        from torch.utils.data import DataLoader

        shards = sorted(glob.glob(os.path.join(source.local, "*.tar")))
        if source.is_remote:
            shards = [
                f"pipe:{self._find_aws_command()} s3 cp {source.copy}/{os.path.basename(path)} -" for path in shards
            ]
        stream = webdataset.WebDataset(shards, shardshuffle=len(shards), seed=0, empty_check=False).shuffle(SHUFFLED)
        if corpus.format != "tar":
            stream = stream.decode().map(lambda sample: sample["json"])
        return DataLoader(stream, batch_size=corpus.batch, num_workers=workers, collate_fn=collate_as_list)

    def _find_aws_command(self) -> str:
        return shutil.which("aws", path=os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])) or ""


LOADERS = {kind.__name__: kind() for kind in (Elastic, HfMap, HfStream, Litdata, Mosaic, Webdataset)}
KIT_LOADER = "Elastic"
