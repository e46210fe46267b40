"""How many tokens each sample has, counted once in parallel and kept beside the index.

That makes packing and filtering exact. A length of 0 means that the sample is left out. A program calls `lengths_of`
and gives the result to `PackedDataset`.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import math
import multiprocessing
import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from hyperpod_kit.data.dataset import IndexedDataset
from hyperpod_kit.data.index import layout
from hyperpod_kit.data.loading.bad_records import OnBad
from hyperpod_kit.errors import BadRecord, DataError
from hyperpod_kit.system import atomic_file
from hyperpod_kit.system.file_lock import lock_exclusively_within
from hyperpod_kit.system.wait import BackOff
from hyperpod_kit.untrusted import by_descriptor
from hyperpod_kit.untrusted.text import clean_one_line

log = logging.getLogger("hyperpod_kit.data")

_SAMPLES_PER_RUN = 4096
"""Samples that are counted at a time, in the order in which they lie."""

_NO_LOCK_ERRORS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)

Encode = Callable[[Any], Sequence[int]]


def lengths_of(
    dataset: IndexedDataset,
    encode: Encode,
    name: str,
    *,
    folder: str | None = None,
    processes: int | None = None,
    on_bad: OnBad | str = OnBad.RAISE,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> npt.NDArray[np.uint32]:
    """Count the tokens of each sample, in parallel, and keep the counts beside the index.

    The counts are kept as they come, so that a run that was killed continues. Of several processes that call it at once
    one counts, and the others wait for it. Processes are forked.

    Args:
        dataset: The samples.
        encode: `encode(sample)` returns the tokens, none for a sample to leave out.
        name: Stands for the tokenizer, the template and the filter: another name is counted anew.
        folder: Where the counts are kept. None: in the index's directory.
        processes: How many processes count. None: as many as the machine has cores.
        on_bad: "raise": a record that cannot be decoded raises BadRecord. "skip": it has no tokens, so it is left out.
            Default: "raise".
        progress: `progress(done, total)` is called with numbers of samples, from time to time. Default: no call.

    Returns:
        The number of tokens of each sample, uint32.

    Raises:
        BadRecord: A record cannot be decoded.
        DataError: The counts on disk are damaged, or of other data; or reading fails (ChangedFile, DataUnavailable).
        ValueError: `on_bad` is neither word.
        OSError: The counts cannot be written.

    Example:
        With a `dataset` of dicts with a "text":

            from hyperpod_kit.data import lengths_of

            lengths = lengths_of(dataset, lambda sample: list(sample["text"].encode()), "bytes, v1")
            print(f"{lengths.sum()} tokens in {len(lengths)} samples")
    """
    index = dataset.index
    rule = OnBad(on_bad)
    if rule is not OnBad.RAISE:
        name = f"{name}\0{rule.value}"
    key = hashlib.blake2b(f"{index.data}\0{name}".encode(), digest_size=8).hexdigest()
    path = os.path.join(folder or index.folder, f"lengths-{key}.npy")
    if os.path.exists(path):
        return _load_counts(path, index.samples)
    with _locked_partial_counts(path) as parts:
        if os.path.exists(path):  # another process has counted meanwhile
            return _load_counts(path, index.samples)
        counts = _count_all_tokens((dataset, encode, rule), parts, processes or os.cpu_count() or 1, progress)
        with atomic_file.open_for_atomic_replace(path) as stream:
            np.save(stream, counts, allow_pickle=False)
        by_descriptor.unlink(parts)
    return counts


def _load_counts(path: str, samples: int) -> npt.NDArray[np.uint32]:
    try:
        counts: npt.NDArray[np.uint32] = layout.load_array(path, np.dtype("<u4"))
    except (OSError, ValueError, EOFError) as err:
        raise DataError(f"{path} cannot be read: {clean_one_line(err)}", hint=f"rm {path}") from None
    if len(counts) != samples:
        raise DataError(f"{path} has {len(counts)} lengths, expected {samples}", hint=f"rm {path}")
    return counts


@contextlib.contextmanager
def _locked_partial_counts(path: str) -> Iterator[str]:
    """Lock the file in which counts are kept as they come: another process that counts the same waits here. On a file
    system without locks each counts by itself."""
    parts = path + ".parts"
    handle = by_descriptor.open_own_or_root_file(f"{parts}.lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            lock_exclusively_within(handle, math.inf, BackOff(0.1, 2.0))
        except OSError as err:
            if err.errno not in _NO_LOCK_ERRORS:
                raise
            parts = f"{parts}.{uuid.uuid4().hex}"
        yield parts
    finally:
        os.close(handle)


def _count_all_tokens(
    initializer_arguments: tuple[IndexedDataset, Encode, OnBad],
    partial_counts_path: str,
    processes: int,
    progress: Callable[[int, int], None],
) -> npt.NDArray[np.uint32]:
    """Count the tokens of all samples.

    The file at `partial_counts_path` has the counts of an earlier run, from the first sample on, without a gap.
    """
    samples = initializer_arguments[0].index.samples
    with by_descriptor.open_stream_for_writing(partial_counts_path, "a+b") as stream:
        stream.seek(0)
        counted = np.frombuffer(stream.read(), "<u4")[:samples]
        if len(counted) < samples:
            counted = counted[: len(counted) // _SAMPLES_PER_RUN * _SAMPLES_PER_RUN]
        stream.truncate(4 * len(counted))
        counts = np.zeros(samples, np.uint32)
        counts[: len(counted)] = counted
        runs = [
            (begin, min(begin + _SAMPLES_PER_RUN, samples)) for begin in range(len(counted), samples, _SAMPLES_PER_RUN)
        ]
        if not runs:
            return counts
        with ProcessPoolExecutor(
            min(processes, len(runs)), multiprocessing.get_context("fork"), _initialize_process, initializer_arguments
        ) as pool:
            for (begin, end), run_counts in zip(runs, pool.map(_count_tokens_in_range, runs), strict=True):
                counts[begin:end] = run_counts
                stream.write(run_counts.astype("<u4").tobytes())
                progress(end, samples)
    return counts


_work: list[Any] = []
"""In a process of the pool: the data set, the encoder and the rule for bad records."""


def _initialize_process(dataset: IndexedDataset, encode: Encode, on_bad: OnBad) -> None:
    _work[:] = [dataset, encode, on_bad]


def _count_tokens_in_range(sample_range: tuple[int, int]) -> npt.NDArray[np.uint32]:
    dataset, encode, on_bad = _work
    try:
        return np.array([len(encode(sample)) for sample in dataset.__getitems__(range(*sample_range))], np.uint32)
    except BadRecord:
        if on_bad is OnBad.RAISE:
            raise
    return np.array([_token_count_or_zero(dataset, encode, number) for number in range(*sample_range)], np.uint32)


def _token_count_or_zero(dataset: IndexedDataset, encode: Encode, number: int) -> int:
    try:
        return len(encode(dataset[number]))
    except BadRecord as err:
        log.warning("%s; it is left out", err.message)
        return 0
