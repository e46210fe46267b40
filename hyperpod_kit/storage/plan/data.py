"""Where training data should lie: streamed from S3, copied to NVMe first, merged, or on FSx for Lustre.

Streaming a file costs the time to its first byte and then its bytes over the stream's rate; a copy costs the same per
file and per byte of the tool. Two published tables have two rows each, which is what the two numbers of each are from:
they are reproduced exactly because there is nothing left over to be wrong by.
"""

from __future__ import annotations

from typing import NamedTuple

from hyperpod_kit.storage.plan import seeds
from hyperpod_kit.storage.plan.catalog import S3_GETS
from hyperpod_kit.storage.plan.facts import DataSet
from hyperpod_kit.untrusted.text import counted

MERGED_BYTES = 100 * 2**20
"""Bytes of a file that small ones are merged into."""

USABLE_SHARE = 0.5
"""Share of a measured stream, and of S3's requests, that training may need before it would wait for data."""


class Line(NamedTuple):
    """seconds = files x `each` + bytes / `rate`."""

    each: float
    rate: float

    def predict_seconds(self, files: float, size: float) -> float:
        """Compute the seconds of `files` files of `size` bytes in all."""
        return files * self.each + size / self.rate


def fit_line(first: tuple[float, float, float], second: tuple[float, float, float]) -> Line:
    """Fit the line through two measurements, (files, bytes, seconds) each."""
    (files, size, spent), (files2, size2, spent2) = first, second
    slope = (spent2 * files - spent * files2) / (size2 * files - size * files2)
    return Line((spent - slope * size) / files, 1 / slope)


def fit_published_streaming_overhead() -> Line:
    """Return what FastFile adds to reading the same file from NVMe: 0.083 s to the first byte, then 306 MiB/s."""
    rows = [(float(row.files), row.files * row.size, row.streamed_read - row.local_read) for row in seeds.STREAMED]
    return fit_line(rows[0], rows[1])


def fit_published_copy_cost(tool: str) -> Line:
    """Return the cost of a tool's copy from S3 to NVMe."""
    rows = [(float(row.files), row.files * row.size, row.seconds) for row in seeds.BULK if row.tool == tool]
    return fit_line(rows[0], rows[1])


class DataAdvice(NamedTuple):
    """Where data should lie.

    `place`: stream, merge or fsx-lustre; `why`; `copy`: seconds that s5cmd would take to bring all of it to NVMe
    before training; `stream`: seconds that streaming adds to one pass; `merged`: the same once files are merged.
    """

    place: str
    why: tuple[str, ...]
    copy: float
    stream: float
    merged: float


def advise_data_location(data: DataSet) -> DataAdvice:
    """Advise where this data set should lie. Without `rows_a_second` only its files are judged."""
    line, copy = fit_published_streaming_overhead(), fit_published_copy_cost("s5cmd")
    stream = line.predict_seconds(data.files, data.size)
    merged = line.predict_seconds(max(1.0, data.size / MERGED_BYTES), data.size)
    rate_share = data.bytes_read_per_second / line.rate
    request_share = data.files_opened_per_second / S3_GETS
    first_byte_share = data.files_opened_per_second * line.each
    reasons = []
    if data.rows_a_second:
        reasons.append(
            f"training reads {data.bytes_read_per_second / 1e6:.3f} MB/s and {data.files_opened_per_second:.1f} files/s"
        )
    if rate_share > USABLE_SHARE:
        reasons.append(
            f"one stream gives {line.rate / 1e6:.0f} MB/s, and training may need at most {USABLE_SHARE:.0%} of that"
        )
    if max(request_share, first_byte_share / 64) > USABLE_SHARE:
        reasons.append(f"each file costs {line.each * 1000:.0f} ms to its first byte, and 64 at once are not enough")
    starved = len(reasons) > bool(data.rows_a_second)
    small = data.size / data.files < MERGED_BYTES / 10 and data.files > 1000
    if starved and not (small and data.text):
        location = "fsx-lustre"
    elif small and data.text:
        location = "merge"
        reasons.append(
            f"{data.files:,} files become {max(1, round(data.size / MERGED_BYTES)):,} of 100 MiB: one pass then waits "
            f"{merged:,.0f} s for storage instead of {stream:,.0f} s"
        )
    else:
        location = "stream"
        reasons.append(
            f"streaming adds {stream:,.0f} s to one pass, "
            f"a copy by s5cmd would take {copy.predict_seconds(*_files_and_size(data)):,.0f} s"
        )
    return DataAdvice(location, tuple(reasons), copy.predict_seconds(*_files_and_size(data)), stream, merged)


def _files_and_size(data: DataSet) -> tuple[float, float]:
    return float(data.files), data.size


class StreamedRow(NamedTuple):
    """A row of the published comparison beside what follows from the fits, in seconds; differences in percent."""

    name: str
    copied: float
    copied_fit: float
    streamed: float
    streamed_fit: float
    train_printed: float
    train: float
    difference_printed: float
    difference: float


def compare_published_streaming_times() -> list[StreamedRow]:
    """Compare the published times of streaming with a copy.

    Their training time is ten times too small: 9.7 s a step and 90 million rows of 32 a step are 27.3 million seconds,
    printed 2.78 million, so streaming costs a tenth as much.
    """
    train = seeds.STEP_SECONDS * seeds.ROWS / seeds.ROWS_A_STEP
    out = []
    for row in seeds.STREAMED:
        size, files = row.files * row.size, float(row.files)
        streamed = row.local_read + fit_published_streaming_overhead().predict_seconds(files, size)
        copied = fit_published_copy_cost("s5cmd").predict_seconds(files, size)
        local = copied + row.local_read + train
        out.append(
            StreamedRow(
                counted(row.files, "file", spec=","),
                row.copied,
                copied,
                row.streamed_read,
                streamed,
                row.printed_train,
                train,
                row.printed_difference,
                ((streamed + train) / local - 1) * 100,
            )
        )
    return out
