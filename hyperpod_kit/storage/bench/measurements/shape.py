"""What the samples say: time to the first byte, bandwidth of a stream, and where more streams stop helping. Pure."""

from __future__ import annotations

from typing import NamedTuple, Sequence

from hyperpod_kit.storage.bench.measurements.streams import StreamSample


class StreamShape(NamedTuple):
    """How streams scale.

    `first`: seconds before bytes flow; `stream`: bytes a second of one stream; `whole`: of all together, None when it
    was never reached; `knee`: streams from which on more do not help, None with `whole`; `error`: greatest relative
    error of a sample's time.
    """

    first: float
    stream: float
    whole: float | None
    knee: float | None
    error: float

    def predict_seconds(self, streams: int, total_bytes: float) -> float:
        """Predict the seconds of `streams` streams with `total_bytes` bytes in all."""
        rate = self.stream * streams
        if self.whole is not None:
            rate = min(rate, self.whole)
        return self.first + total_bytes / rate


NO_GAIN = 0.8
"""Twice the streams that give less than this share of twice the rate have met a limit."""


def fit_shape(samples: Sequence[StreamSample]) -> StreamShape | None:
    """Fit the shape of samples of one kind; None without a sample of one stream.

    Two sizes of one stream are needed for `first`.
    """
    alone = sorted((sample for sample in samples if sample.streams == 1), key=lambda sample: sample.size)
    if not alone:
        return None
    first, stream = _fit_latency_and_rate([(float(sample.size), sample.seconds) for sample in alone])
    total_rate = _find_rate_limit(first, stream, samples)
    knee = None
    if total_rate is not None:
        knee = total_rate / stream
    fitted = StreamShape(first, stream, total_rate, knee, 0.0)
    worst = max(abs(fitted.predict_seconds(sample.streams, sample.size) / sample.seconds - 1) for sample in samples)
    return fitted._replace(error=worst)


def _find_rate_limit(latency_seconds: float, stream_rate: float, samples: Sequence[StreamSample]) -> float | None:
    """Find the rate that many streams do not exceed, None when each still has its own rate."""
    rates = [
        (sample.streams, sample.size / max(sample.seconds - latency_seconds, 1e-9))
        for sample in samples
        if sample.streams > 1
    ]
    limited = [rate for count, rate in rates if rate < NO_GAIN * count * stream_rate]
    if not limited:
        return None
    return max(rate for _, rate in rates)


def _fit_latency_and_rate(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Fit (seconds at 0 bytes, bytes a second): the line of least relative error; through 0 when there is one size."""
    weights = [1 / seconds**2 for _, seconds in points]
    total = sum(weights)
    mean_x = sum(weight * x for weight, (x, _) in zip(weights, points)) / total
    mean_y = sum(weight * y for weight, (_, y) in zip(weights, points)) / total
    spread = sum(weight * (x - mean_x) ** 2 for weight, (x, _) in zip(weights, points))
    if spread <= 1e-12 * total * mean_x**2:
        return 0.0, mean_x / mean_y
    slope = sum(weight * (x - mean_x) * (y - mean_y) for weight, (x, y) in zip(weights, points)) / spread
    at_zero = mean_y - slope * mean_x
    if slope <= 0 or at_zero < 0:  # noise: larger files took less, or less than nothing at 0 bytes
        return 0.0, mean_x / mean_y
    return at_zero, 1 / slope
