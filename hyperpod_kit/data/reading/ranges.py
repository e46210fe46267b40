"""Several ranges of files at once: out of pieces in memory, or by themselves, with a hint for what lies around them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from hyperpod_kit.data.numbers.bijection import Numbers
from hyperpod_kit.data.reading.coalesced_reads import CoalescedReads
from hyperpod_kit.data.reading.source_files import FileFacts, SourceFiles

_HINT_BYTES = 1 << 17
"""Bytes around a range of which the kernel is given a hint at once: less than a block of the default order has."""
_MAX_KNOWN_RANGES = 4096
_PORTION_BYTES = 256 << 10
"""Bytes that are read together: what is decoded next is still in the processor's cache, and its memory is used again
for the next portion."""


class RangeReader:
    """Ranges of the files that an index knows. `memory`: see CoalescedReads."""

    def __init__(self, files: SourceFiles, memory: int) -> None:
        self._files = files
        self.windows = CoalescedReads(files, memory)
        self._hinted: dict[tuple[str, int], None] = {}
        self._has_read = False

    def read_several(
        self,
        file_by_number: Callable[[int], FileFacts],
        samples: Numbers,
        file_numbers: Numbers,
        starts: Numbers,
        lengths: Numbers,
    ) -> Sequence[bytes]:
        """Read the bytes of each range, in the order requested; `file_by_number` gives the facts of a file.

        Raises what SourceFiles.read raises.
        """
        ranges = self.windows.ranges_or_empty_reading_frequent_pieces(
            file_by_number, samples, file_numbers, starts, lengths
        )
        if all(ranges):
            return ranges
        return list(self.fill_in_missing_ranges(ranges, file_by_number, file_numbers, starts, lengths))

    def fill_in_missing_ranges(
        self,
        ranges: Sequence[bytes],
        file_by_number: Callable[[int], FileFacts],
        file_numbers: Numbers,
        starts: Numbers,
        lengths: Numbers,
    ) -> Iterator[bytes]:
        """Yield all ranges in their order; those that are empty are read, a portion at a time."""
        missing = [n for n, data in enumerate(ranges) if not data]
        ids, begins, sizes = file_numbers[missing].tolist(), starts[missing].tolist(), lengths[missing].tolist()
        facts_of_files = {number: file_by_number(number) for number in set(ids)}
        files = [facts_of_files[number] for number in ids]
        if not self._has_read:
            # Where training goes on, nothing is fetched but what the first batch is made of, side by side.
            for range_of_file in zip(files, begins, sizes):
                self._files.prefetch_range(*range_of_file)
            self._has_read = True
        else:
            longest = max(sizes)
            for number, around in {(number, begin // _HINT_BYTES) for number, begin in zip(ids, begins)}:
                self._hint_surroundings_once(facts_of_files[number], around, longest)
            if len(missing) > 1 and self._files.has_slow_sources:
                self._files.prefetch_ranges(zip(files, begins, sizes))
        given = 0
        for first, end in _split_into_portions(sizes):
            read = self._files.read_several(files[first:end], begins[first:end], sizes[first:end])
            for n, data in zip(missing[first:end], read):
                yield from ranges[given:n]
                yield data
                given = n + 1
        yield from ranges[given:]

    def read_range(self, file: FileFacts, start: int, length: int) -> bytes:
        """Read the bytes of a range."""
        self._hint_surroundings_once(file, start // _HINT_BYTES, length)
        return self._files.read(file, start, length)

    def _hint_surroundings_once(self, file: FileFacts, hint_block_number: int, length: int) -> None:
        """Hint to the kernel that samples of a block come soon: it would not guess their order."""
        if (file.path, hint_block_number) in self._hinted or file.path.startswith("s3://"):
            return
        self._files.prefetch_range(file, hint_block_number * _HINT_BYTES, _HINT_BYTES + length)
        self._hinted[file.path, hint_block_number] = None
        if len(self._hinted) > _MAX_KNOWN_RANGES:
            del self._hinted[next(iter(self._hinted))]


def _split_into_portions(sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield (first, end) of ranges that have about `_PORTION_BYTES` bytes together."""
    first = total = 0
    for n, size in enumerate(sizes):
        total += size
        if total >= _PORTION_BYTES:
            yield first, n + 1
            first, total = n + 1, 0
    if first < len(sizes):
        yield first, len(sizes)
