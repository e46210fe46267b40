"""Windows of a fixed number of tokens, packed while training: documents in the epoch's order, one after another.

How many tokens each document has is known (lengths.py), so which documents a window takes is arithmetic: any window is
made by any rank at any time, and a resume is as exact as with single samples. A program makes a `PackedDataset` and
gives an `ElasticLoader` both it and its `windows` as the order.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hyperpod_kit.data.numbers.bijection import Numbers
from hyperpod_kit.data.order.buckets import WeightBuckets, cumulate_weights_by_section
from hyperpod_kit.data.order.order import SampleOrder, ShuffledOrder
from hyperpod_kit.data.tokens.lengths import Encode
from hyperpod_kit.errors import DataError
from hyperpod_kit.untrusted.text import counted

_MAX_EPOCHS = 2
_MAX_BUCKETS = 4
_MAX_DOCUMENTS = 1024


class WindowOrder:
    """Windows by their number since the first epoch: which documents are in them, the data set works out."""

    def __init__(self, windows: int, documents: SampleOrder, window: int, lengths: str) -> None:
        self.samples = windows
        self._documents = documents
        self._window = window
        self._lengths = lengths

    def at(self, epoch: int, positions: Numbers) -> Numbers:
        """See SampleOrder: a number says its epoch too."""
        return positions + epoch * self.samples

    def described(self) -> dict[str, Any]:
        """See SampleOrder."""
        documents = self._documents.described()
        window_facts = {"samples": self.samples, "window": self._window, "lengths": self._lengths}
        return {**documents, "documents": documents["samples"], **window_facts}


class PackedDataset:
    """Windows of a fixed number of tokens, int64, packed from documents.

    An epoch is all documents in the order of `order`. The tokens that do not fill a last window are left out of it; a
    document may continue in the next window. Give the loader `order=packed.windows`. Reading raises DataError for a
    document that has not as many tokens as were counted.

    Args:
        dataset: An IndexedDataset, or MegatronTokens.
        encode: Returns the tokens of a sample. None: the samples are tokens already.
        lengths: How many tokens each document has: from `lengths_of` (what has none is left out), or the data set's own
            of MegatronTokens.
        window: How many tokens a window has.
        order: The order of the documents, as `order_of(dataset, seed)`.
        documents: Whether a window has where its documents begin, for an attention that stays inside a document: it is
            {"tokens": them, "cu_seqlens": where its documents begin, and its end, int32}, see `packed_batch`. A
            document that continues from the window before begins at 0 again. False: a window is its tokens.

    Attributes:
        index: The data set's index.
        tokens: How many tokens all documents have together.
        windows: The order to give the loader.

    Raises:
        DataError: Documents, lengths and order are not of one number, or all documents have fewer tokens than a window.

    Example:
        With a `dataset`, and a function `encode` from a sample to its tokens:

            from hyperpod_kit.data import ElasticLoader, PackedDataset, lengths_of, order_of

            lengths = lengths_of(dataset, encode, "bytes, v1")
            packed = PackedDataset(dataset, encode, lengths, window=128, order=order_of(dataset, seed=1))
            loader = ElasticLoader(packed, batch_size=2, order=packed.windows)
            for windows in loader:
                assert windows.shape == (2, 128)
    """

    def __init__(
        self,
        dataset: Any,
        encode: Encode | None,
        lengths: npt.NDArray[np.uint32],
        *,
        window: int,
        order: SampleOrder,
        documents: bool = False,
    ) -> None:
        if len(lengths) != len(dataset) or order.samples != len(dataset):
            raise DataError(
                f"{counted(len(dataset), 'document')}, {counted(len(lengths), 'length')} and an order of "
                f"{order.samples}: the three numbers must be equal"
            )
        self.index = dataset.index
        self.tokens = int(lengths.sum(dtype=np.uint64))
        if self.tokens < window:
            raise DataError(f"{counted(self.tokens, 'token')} in total, fewer than one window of {window}")
        self._dataset = dataset
        if isinstance(order, ShuffledOrder) and hasattr(dataset, "read_by"):
            dataset.read_by(order.block)
        self._encode = encode
        self._lengths = lengths
        self._window = window
        self._order = order
        self._with_documents = documents
        # Of other lengths, another tokenizer's for one, a window of this number has other tokens.
        digest = hashlib.blake2b(np.ascontiguousarray(lengths, "<u4").data, digest_size=16).hexdigest()
        self.windows = WindowOrder(self.tokens // window, order, window, digest)
        self._epochs: OrderedDict[int, WeightBuckets] = OrderedDict()
        self._sections: OrderedDict[tuple[int, int], tuple[Numbers, Numbers]] = OrderedDict()
        self._encoded: OrderedDict[int, npt.NDArray[np.int64]] = OrderedDict()

    def one_of(self, sets: int) -> None:
        """Share the limits of open files and memory with the other sets of a mix.

        Args:
            sets: How many sets the mix has.
        """
        if hasattr(self._dataset, "one_of"):
            self._dataset.one_of(sets)

    def __len__(self) -> int:
        """Windows of an epoch."""
        return self.windows.samples

    def __getitem__(self, number: int) -> Any:
        return self.__getitems__([number])[0]

    def __getitems__(self, numbers: Sequence[int]) -> list[Any]:
        """Read several windows.

        Args:
            numbers: Their numbers since the first epoch.

        Returns:
            Tokens, or dicts of them and of where documents begin, in that order.

        Raises:
            DataError: A document has not as many tokens as were counted.
        """
        requested = [self._documents_of_window(number) for number in numbers]
        self._load_and_encode_missing([document for documents, _ in requested for document in documents])
        windows: list[Any] = []
        for documents, skip in requested:
            tokens = np.concatenate([self._encoded[document] for document in documents])[skip : skip + self._window]
            if self._with_documents:
                windows.append({"tokens": tokens, "cu_seqlens": self._window_cu_seqlens(documents, skip)})
            else:
                windows.append(tokens)
        self._evict_oldest_documents()
        return windows

    def _window_cu_seqlens(self, documents: Sequence[int], skip: int) -> npt.NDArray[np.int32]:
        """Compute where each document of a window begins in it, and the window's end."""
        ends = np.cumsum(self._lengths[np.asarray(documents)], dtype=np.int64) - skip
        return np.concatenate([[0], np.minimum(ends, self._window)]).astype(np.int32)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_epochs": OrderedDict(), "_sections": OrderedDict(), "_encoded": OrderedDict()}

    def _documents_of_window(self, number: int) -> tuple[list[int], int]:
        """Find the documents of a window, and how many tokens of the first one are in earlier windows."""
        epoch, inside = divmod(number, len(self))
        begin = inside * self._window
        end = begin + self._window
        ends_of_sections = self._cached_cumulative_tokens_by_section(epoch).weights
        section = int(np.searchsorted(ends_of_sections, begin, side="right"))
        chosen: list[int] = []
        skip = 0
        while True:
            documents, ends = self._documents_and_ends_of_section(epoch, section)
            first = int(np.searchsorted(ends, begin, side="right"))
            last = int(np.searchsorted(ends, end, side="left"))
            if not chosen:
                tokens_before = int(ends[first - 1]) if first else self._tokens_before_section(epoch, section)
                skip = begin - tokens_before
            some = documents[first : last + 1]
            chosen += some[self._lengths[some] > 0].tolist()
            if end <= int(ends_of_sections[section]):
                return chosen, skip
            section += 1

    def _tokens_before_section(self, epoch: int, section: int) -> int:
        """Count the tokens of an epoch before a bucket."""
        if not section:
            return 0
        return int(self._cached_cumulative_tokens_by_section(epoch).weights[section - 1])

    def _cached_cumulative_tokens_by_section(self, epoch: int) -> WeightBuckets:
        """Sum documents and tokens up to the end of each bucket of an epoch."""
        sections = self._epochs.get(epoch)
        if sections is None:
            sections = self._epochs[epoch] = cumulate_weights_by_section(self._order, epoch, self._lengths)
            if len(self._epochs) > _MAX_EPOCHS:
                self._epochs.popitem(last=False)
        return sections

    def _documents_and_ends_of_section(self, epoch: int, section: int) -> tuple[Numbers, Numbers]:
        """Order the documents of a bucket, with where each of them ends among the epoch's tokens."""
        documents_and_ends = self._sections.get((epoch, section))
        if documents_and_ends is None:
            ends = self._cached_cumulative_tokens_by_section(epoch).positions
            begin = int(ends[section - 1]) if section else 0
            places = np.arange(begin, int(ends[section]), dtype=np.int64)
            documents = self._order.at(epoch, places)
            tokens = np.cumsum(self._lengths[documents], dtype=np.int64) + self._tokens_before_section(epoch, section)
            documents_and_ends = self._sections[epoch, section] = (documents, tokens)
            if len(self._sections) > _MAX_BUCKETS:
                self._sections.popitem(last=False)
        return documents_and_ends

    def _load_and_encode_missing(self, documents: Sequence[int]) -> None:
        missing = [number for number in dict.fromkeys(documents) if number not in self._encoded]
        for document, sample in zip(missing, self._dataset.__getitems__(missing), strict=True):
            if self._encode is not None:
                sample = self._encode(sample)
            tokens = np.asarray(sample, dtype=np.int64)
            if len(tokens) != int(self._lengths[document]):
                raise DataError(
                    f"document {document} has {counted(len(tokens), 'token')}, but was counted with "
                    f"{self._lengths[document]}",
                    hint="the tokenizer, template or filter has changed: give lengths_of another name",
                )
            self._encoded[document] = tokens
        for document in documents:
            self._encoded.move_to_end(document)

    def _evict_oldest_documents(self) -> None:
        while len(self._encoded) > _MAX_DOCUMENTS:
            self._encoded.popitem(last=False)


def packed_batch(windows: Sequence[Mapping[str, npt.NDArray[Any]]]) -> dict[str, Any]:
    """Join windows of `PackedDataset(..., documents=True)` to a batch, as a loader's `collate_fn`.

    Args:
        windows: The windows, each {"tokens", "cu_seqlens"}.

    Returns:
        {"tokens", "position_ids"} of a row a window, where places count from the beginning of a document; "cu_seqlens"
        (int32) of all rows one after another, as flash attention takes them; and "max_seqlen", how many tokens the
        longest document has in a window.

    Example:
        With a `dataset`, its `lengths`, and a function `encode` from a sample to its tokens:

            from hyperpod_kit.data import ElasticLoader, PackedDataset, order_of, packed_batch

            order = order_of(dataset, seed=1)
            packed = PackedDataset(dataset, encode, lengths, window=128, order=order, documents=True)
            loader = ElasticLoader(packed, batch_size=2, order=packed.windows, collate_fn=packed_batch)
            for batch in loader:
                assert batch["cu_seqlens"][-1] == batch["tokens"].numel()
    """
    import torch

    tokens = np.stack([window["tokens"] for window in windows])
    width = tokens.shape[1]
    begins = [window["cu_seqlens"][:-1] + row * width for row, window in enumerate(windows)]
    cu_seqlens = np.concatenate([*begins, [tokens.size]]).astype(np.int32)
    lengths = np.diff(cu_seqlens)
    places = np.arange(tokens.size) - np.repeat(cu_seqlens[:-1], lengths)
    return {
        "tokens": torch.from_numpy(tokens),
        "position_ids": torch.from_numpy(places.reshape(tokens.shape)),
        "cu_seqlens": torch.from_numpy(cu_seqlens),
        "max_seqlen": int(lengths.max()),
    }


def padded(tokens: Sequence[int], length: int, filler: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Cut tokens off at `length`, or fill them up to it.

    Args:
        tokens: The tokens.
        length: How many there shall be.
        filler: The token to fill up with.

    Returns:
        (tokens, mask), both int64 and `length` long; the mask is 0 where it was filled up, else 1.

    Example:
        from hyperpod_kit.data import padded

        tokens, mask = padded([5, 6, 7], length=5, filler=0)
        assert tokens.tolist() == [5, 6, 7, 0, 0] and mask.tolist() == [1, 1, 1, 0, 0]
    """
    kept = np.asarray(tokens[:length], dtype=np.int64)
    padded_tokens = np.full(length, filler, np.int64)
    padded_tokens[: len(kept)] = kept
    mask = np.zeros(length, np.int64)
    mask[: len(kept)] = 1
    return padded_tokens, mask
