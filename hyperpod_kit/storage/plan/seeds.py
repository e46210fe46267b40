"""The measurements that this kit began with: published tables, which every planner here is held against.

Checkpoints: Llama-3-8B on one ml.g5.48xlarge (8 A10G), FSx for Lustre of 60 TiB with 250 MB/s a TiB, s5cmd 2.x from
NVMe to S3. What is printed there as GB is GiB: 8,030,261,248 parameters of 4 bytes are 29.915 GiB, printed 29.93.
Data: zh_wiki on one p4d.24xlarge. "570K" is KiB.
"""

from __future__ import annotations

from typing import NamedTuple

from hyperpod_kit.storage.plan.calibration import Calibration, Sample
from hyperpod_kit.storage.plan.facts import GIB

PARAMETERS = 8_030_261_248
SOURCE = "the published tables (Llama-3-8B, one ml.g5.48xlarge)"

_ROWS = (
    # name, GiB a file, files, seconds: nvme, nvme-to-s3, mountpoint-s3 (None: it cannot rename), fsx-lustre
    ("Model (Full)", 29.93, 1, 114.0, 81.54, 107.0, 129.0),
    ("Optimizer (Full)", 59.85, 1, 260.0, 176.31, 225.0, 254.0),
    ("Model (Sharded)", 3.74, 8, 38.0, 12.79, None, 29.0),
    ("Optimizer (Sharded)", 7.48, 8, 75.0, 23.94, None, 63.0),
)
COLUMNS = ("nvme", "nvme-to-s3", "mountpoint-s3", "fsx-lustre")


def _published_samples() -> tuple[Sample, ...]:
    out = []
    for name, each, count, *times in _ROWS:
        writer = "torch-save" if count == 1 else "dcp"
        for storage, spent in zip(COLUMNS, times):
            if spent is not None:
                out.append(Sample(storage, writer, count, 1, each * count * GIB, spent, name))
    return tuple(out)


CHECKPOINTS = Calibration(SOURCE, _published_samples(), {"date": "2024", "instance": "ml.g5.48xlarge"})


class BulkCopy(NamedTuple):
    """Seconds that a tool took to copy `files` files of `size` bytes each from S3 to NVMe."""

    tool: str
    size: float
    files: int
    seconds: float


BULK = (
    BulkCopy("s3 cp", 570 * 1024, 183_960, 2075),
    BulkCopy("s5cmd", 570 * 1024, 183_960, 105),
    BulkCopy("s3 cp", 100 * 2**20, 1_000, 256),
    BulkCopy("s5cmd", 100 * 2**20, 1_000, 27),
)


class StreamedTable(NamedTuple):
    """Seconds of one pass over a data set: copied first and read from NVMe, or streamed through FastFile."""

    size: float
    files: int
    copied: float
    local_read: float
    streamed_read: float
    printed_train: float
    printed_difference: float


STREAMED = (
    StreamedTable(570 * 1024, 183_960, 105, 99_890, 115_490, 2_780_000, 0.54),
    StreamedTable(100 * 2**20, 1_000, 27, 25_454, 25_856, 2_780_000, 0.01),
)
ROWS, STEP_SECONDS, ROWS_A_STEP = 90e6, 9.7, 32
"""Of that training: 9.7 s a step of 8 GPUs with 2 rows and 2 accumulations each, 90 million rows."""
