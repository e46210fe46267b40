"""Megatron's indexed data set, `PREFIX.bin` and `PREFIX.idx`: written as Megatron and NeMo read it, and read here.

`hyperpod-kit data tokenize` calls `write`; a training program makes `MegatronTokens`.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from hyperpod_kit.data.numbers.bijection import Numbers
from hyperpod_kit.data.order.block_cuts import BlockCuts
from hyperpod_kit.data.reading.bounded import REPLY_SECONDS
from hyperpod_kit.data.reading.coalesced_reads import MEMORY_BYTES
from hyperpod_kit.data.reading.ranges import RangeReader
from hyperpod_kit.data.reading.retrying_reader import RETRY_SECONDS, RetryingFiles
from hyperpod_kit.errors import DataError, NoData
from hyperpod_kit.system import atomic_file
from hyperpod_kit.untrusted import files
from hyperpod_kit.untrusted.text import counted

_MAGIC = b"MMIDIDX\x00\x00"
_CODES: dict[int, Any] = {4: np.int32, 8: np.uint16}
"""Megatron's numbers for types; the two that its own preprocessing writes."""


def token_dtype_for(vocabulary_size: int) -> Any:
    """Choose the type of tokens as Megatron does: 16 bits where every token fits."""
    return np.uint16 if vocabulary_size < 65_500 else np.int32


def write_documents(prefix: str, documents: Iterable[Sequence[int]], vocabulary_size: int) -> tuple[int, int]:
    """Write documents as PREFIX.bin and PREFIX.idx; return (documents, tokens). Raises DataError for other tokens.

    The index takes its place last: until then there is no data set.
    """
    kind = np.dtype(token_dtype_for(vocabulary_size))
    lengths: list[int] = []
    with atomic_file.open_for_atomic_replace(f"{prefix}.bin", durable=True) as stream:
        for tokens in documents:
            array = np.asarray(tokens, dtype=np.int64)
            if array.size and not 0 <= int(array.min()) <= int(array.max()) < vocabulary_size:
                raise DataError(
                    f"document {len(lengths)} has token {int(array.max())}, expected below {vocabulary_size}"
                )
            stream.write(array.astype(kind).tobytes())
            lengths.append(len(array))
    with atomic_file.open_for_atomic_replace(f"{prefix}.idx", durable=True) as stream:
        _write_index(stream, np.array(lengths, np.int32), kind)
    return len(lengths), sum(lengths)


def _write_index(stream: BinaryIO, lengths: npt.NDArray[np.int32], kind: np.dtype[Any]) -> None:
    code = next(code for code, token_type in _CODES.items() if token_type == kind)
    pointers = np.zeros(len(lengths), np.int64)
    np.cumsum(lengths[:-1].astype(np.int64) * kind.itemsize, out=pointers[1:])
    stream.write(_MAGIC + struct.pack("<QBQQ", 1, code, len(lengths), len(lengths) + 1))
    stream.write(lengths.astype("<i4").tobytes())
    stream.write(pointers.astype("<i8").tobytes())
    stream.write(np.arange(len(lengths) + 1, dtype="<i8").tobytes())


class TokensFile(NamedTuple):
    """The `.bin` as it was when it was opened first: one that changes while training reads it is refused."""

    path: str
    size: int
    mtime_ns: int
    digest: str = ""


class MegatronTokens:
    """The documents of a Megatron data set by their numbers, as int64 tokens.

    For PackedDataset `encode` is None, and `lengths` are the data set's own. Reading raises ChangedFile and
    DataUnavailable, as of IndexedDataset.

    Args:
        prefix: The path of both files without `.bin` and `.idx`.
        memory: How many bytes of the file each process keeps. Default: 128 MiB.
        patience: See IndexedDataset. Default: 300 seconds.
        answer: See IndexedDataset. Default: 30 seconds.
        elsewhere: See IndexedDataset. None: nowhere.

    Attributes:
        prefix: As given.
        lengths: How many tokens each document has, int32.
        bytes: How large the `.bin` is.
        data: A digest of the documents' lengths and places.

    Raises:
        NoData: A file is not there.
        DataError: The files are no data set, or not whole.

    Example:
        With the `prefix` of a data set that `hyperpod-kit data tokenize` has written:

            from hyperpod_kit.data import ElasticLoader, MegatronTokens, PackedDataset, order_of

            tokens = MegatronTokens(prefix)
            packed = PackedDataset(tokens, None, tokens.lengths, window=128, order=order_of(tokens, seed=1))
            loader = ElasticLoader(packed, batch_size=2, order=packed.windows)
    """

    def __init__(
        self,
        prefix: str,
        *,
        memory: int = MEMORY_BYTES,
        patience: float = RETRY_SECONDS,
        answer: float = REPLY_SECONDS,
        elsewhere: Mapping[str, str] | None = None,
    ) -> None:
        self.prefix = prefix
        try:
            with open(f"{prefix}.idx", "rb", opener=files.open_nonblocking) as stream:
                head = stream.read(len(_MAGIC) + 25) or b""  # of a fifo to which nobody writes there is nothing
                if len(head) < len(_MAGIC) + 25 or head[: len(_MAGIC)] != _MAGIC:
                    raise DataError(f"{prefix}.idx is not a Megatron index", hint="hyperpod-kit data tokenize")
                version, code, count, _ = struct.unpack("<QBQQ", head[len(_MAGIC) :])
                rest = stream.read(12 * min(count, os.fstat(stream.fileno()).st_size // 12))
            status = os.stat(f"{prefix}.bin")
        except FileNotFoundError as err:
            raise NoData(f"no such file: {err.filename}", hint="hyperpod-kit data tokenize") from None
        if version != 1 or code not in _CODES or len(rest) != 12 * count:
            raise DataError(
                f"{prefix}.idx: version {version}, type {code}, {len(rest)} bytes for {counted(count, 'document')}"
            )
        self.lengths = np.frombuffer(rest, "<i4", count)
        self._pointers = np.frombuffer(rest, "<i8", count, 4 * count)
        self._kind = np.dtype(_CODES[code])
        expected_size = int(self.lengths.sum(dtype=np.int64)) * self._kind.itemsize
        if status.st_size != expected_size:
            raise DataError(f"{prefix}.bin has {status.st_size} bytes, expected {expected_size}")
        if count and (
            int(self.lengths.min()) < 0 or not _are_inside_file(self._pointers, self.lengths, self._kind, expected_size)
        ):
            raise DataError(f"{prefix}.idx: documents are outside {prefix}.bin")
        self.data = hashlib.blake2b(rest, digest_size=16).hexdigest()
        self._file = TokensFile(f"{prefix}.bin", status.st_size, status.st_mtime_ns)
        self._reading = (memory, patience, dict(elsewhere or {}), answer)
        self._ranges: RangeReader | None = None
        self.bytes = expected_size
        self._cuts = BlockCuts(self)
        self._among = 1

    @property
    def index(self) -> MegatronTokens:
        """What identifies the data: the data set itself."""
        return self

    def block_for(self, size: int = 1 << 20) -> int:
        """Compute how many documents have about `size` bytes.

        Args:
            size: Bytes. Default: 1 MiB.

        Returns:
            The number, 16 at least and 8192 at most.
        """
        mean = max(1, int(self.lengths.sum(dtype=np.int64)) * self._kind.itemsize // max(1, len(self)))
        return int(min(max(16, size // mean), 8192))

    def read_by(self, block: int) -> None:
        """Read so many documents together from now on; PackedDataset calls it with the block of its order.

        Args:
            block: How many.
        """
        self._cuts.set_samples_per_block(block)

    def one_of(self, sets: int) -> None:
        """Share the limits of open files and memory with the other sets of a mix.

        Args:
            sets: How many sets the mix has.
        """
        self._among, self._ranges = sets, None

    @property
    def firsts(self) -> Numbers:
        """The number of the first document of each file: there is one file."""
        return np.zeros(1, np.int64)

    def places(self, documents: Any) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Locate documents.

        Args:
            documents: The numbers of documents, or a slice of them.

        Returns:
            (start, length) of each, in bytes of the `.bin`.
        """
        return self._pointers[documents], self.lengths[documents].astype(np.int64) * self._kind.itemsize

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, number: int) -> npt.NDArray[np.int64]:
        return self.__getitems__([number])[0]

    def __getitems__(self, numbers: Sequence[int]) -> list[npt.NDArray[np.int64]]:
        """Read several documents.

        Args:
            numbers: Their numbers.

        Returns:
            The tokens of each, in that order.

        Raises:
            ChangedFile: The `.bin` is not the one that was opened first.
            DataUnavailable: Bytes cannot be read from storage, and everything was tried.
        """
        if self._ranges is None:
            memory, patience, elsewhere, reply_timeout = self._reading
            files = RetryingFiles(patience, elsewhere, reply_timeout=reply_timeout)
            files.cuts, files.among = self._cuts, self._among
            self._ranges = RangeReader(files, memory)
        requested = np.asarray(numbers, dtype=np.int64)
        lengths = self.lengths[requested].astype(np.int64) * self._kind.itemsize
        documents = self._ranges.read_several(
            lambda _: self._file, requested, np.zeros_like(requested), self._pointers[requested], lengths
        )
        return [np.frombuffer(data, self._kind).astype(np.int64) for data in documents]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_ranges": None}


def _are_inside_file(pointers: Numbers, lengths: npt.NDArray[np.int32], kind: np.dtype[Any], size: int) -> bool:
    """Whether each document lies inside a file of so many bytes."""
    ends = pointers + lengths.astype(np.int64) * kind.itemsize
    return int(pointers.min()) >= 0 and int(ends.max()) <= size
