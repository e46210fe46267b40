"""What a person says of a training job, and the words for it."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from enum import Enum

from hyperpod_kit.errors import UsageError
from hyperpod_kit.untrusted.text import counted

GIB = 2**30
GB = 10**9

BYTES_PER_PARAMETER = {
    ("fp32", "adam"): (4, 8),
    ("bf16", "adam"): (2, 12),
    ("fp32", "sgd"): (4, 4),
    ("bf16", "sgd"): (2, 8),
    ("fp32", "none"): (4, 0),
    ("bf16", "none"): (2, 0),
}
"""(dtype of the weights, optimizer) -> bytes a parameter of the model and of the optimizer. With bf16 the optimizer
holds an fp32 copy of the weights too, which is where MLPerf Storage's 14 bytes a parameter come from."""


class PlannedWriter(Enum):
    """Who writes a checkpoint, which says how many write at once and whether training waits for them."""

    TORCH_SAVE = "torch-save"
    DCP = "dcp"
    HYPERPOD_KIT = "hyperpod-kit"

    @property
    def is_sharded(self) -> bool:
        """Whether every rank writes its own part; otherwise rank 0 gathers everything and writes alone."""
        return self is not PlannedWriter.TORCH_SAVE

    @property
    def needs_rename(self) -> bool:
        """Whether it renames files: DCP writes `.metadata.tmp` first; ours commits by a manifest, written last."""
        return self is PlannedWriter.DCP

    @property
    def blocks_training(self) -> bool:
        """Whether training stands still until the bytes are on storage."""
        return self is not PlannedWriter.HYPERPOD_KIT


@dataclass(frozen=True)
class DataSet:
    """Training data. `size`: bytes; `files`: how many; `rows`: samples, of which `rows_a_second` are trained on (both
    0 when unknown); `text`: whether files could be merged or tokenized beforehand."""

    size: float
    files: int
    rows: float = 0.0
    rows_a_second: float = 0.0
    text: bool = True

    def __post_init__(self) -> None:
        if self.size <= 0 or self.files <= 0:
            raise UsageError(
                f"a data set of {self.size:g} bytes in {counted(self.files, 'file')}: expected more than 0 of each"
            )

    @property
    def bytes_read_per_second(self) -> float:
        """Compute the bytes a second that training reads, 0 when unknown."""
        if not self.rows:
            return 0.0
        return self.size / self.rows * self.rows_a_second

    @property
    def files_opened_per_second(self) -> float:
        """Compute the files a second that training opens when it reads each once, 0 when unknown."""
        if not self.rows:
            return 0.0
        return self.files / self.rows * self.rows_a_second


@dataclass(frozen=True)
class JobFacts:
    """A training job.

    `parameters`: of the model; `ranks`: processes, one a GPU; `nodes`; `mtbf`: seconds between two failures of the
    whole job; `every`: seconds between two saves that a person wants, None: the best; `memory_share`: share of failures
    that memory survives (a process or a node with a replica); `restart`: seconds from a failure to the first step;
    `keep`: checkpoints that stay; `network`: bytes a second of a node's network; `gpu_hour`: US dollars, 0 unknown;
    `budget`: US dollars a month for storage, None: any; `fsx_throughput`: MB/s a TiB of FSx, None: any;
    `mtbf_source`: where `mtbf` is from; `prefixes`: of S3 that a checkpoint is spread over; `efa`: whether FSx is
    reached by it;
    `mountpoint_memory`: bytes that Mountpoint may use (its --memory-target), None: no limit on open files is known.
    """

    parameters: float
    ranks: int
    nodes: int
    mtbf: float
    dtype: str = "fp32"
    optimizer: str = "adam"
    custom: float | None = None
    writer: PlannedWriter = PlannedWriter.HYPERPOD_KIT
    every: float | None = None
    memory_share: float = 0.0
    restart: float = 300.0
    keep: int = 3
    network: float = 100e9 / 8
    gpu_hour: float = 0.0
    budget: float | None = None
    fsx_throughput: int | None = None
    mountpoint_memory: float | None = None
    mountpoint_part_mib: int | None = None
    data: DataSet | None = None
    mtbf_source: str = "as given"
    prefixes: int = 1
    efa: bool = False

    def __post_init__(self) -> None:
        if (self.dtype, self.optimizer) not in BYTES_PER_PARAMETER:
            raise UsageError(f"{self.dtype} with {self.optimizer}: expected one of {sorted(BYTES_PER_PARAMETER)}")
        for name in ("parameters", "ranks", "nodes", "mtbf", "keep", "network", "prefixes"):
            value = getattr(self, name)
            if not (value > 0 and math.isfinite(value)):
                raise UsageError(f"{name} is {value!r}: expected a number above 0")
        if not 0 <= self.memory_share <= 1:
            raise UsageError(f"the share of failures that memory survives is {self.memory_share!r}: expected 0 to 1")
        if self.ranks % self.nodes:
            raise UsageError(
                f"{counted(self.ranks, 'rank')} on {counted(self.nodes, 'node')}: expected the same number on each node"
            )


_UNITS = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12}
_SIZES = {"": 1.0, "b": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "p": 1e15}
_BINARY = {"k": 2.0**10, "m": 2.0**20, "g": 2.0**30, "t": 2.0**40, "p": 2.0**50}
_TIMES = {"": 1.0, "s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_NUMBER = re.compile(r"([0-9]+(?:\.[0-9]+)?(?:e[0-9]+)?)\s*([a-z]*)")


def _split_number_and_unit(text: str, expected: str) -> tuple[float, str]:
    match = _NUMBER.fullmatch(text.strip().lower().replace(",", ""))
    if match is None:
        raise UsageError(f"{text!r}: expected {expected}")
    return float(match.group(1)), match.group(2)


def parse_count(text: str) -> float:
    """Parse `8.03B`, `70b`, `8e9` to a number. Raises UsageError."""
    expected = "a number such as 8.03B, 70B or 8e9"
    number, unit = _split_number_and_unit(text, expected)
    if unit not in _UNITS:
        raise UsageError(f"{text!r}: expected {expected}")
    return number * _UNITS[unit]


def parse_size(text: str) -> float:
    """Parse `100GB` (10^9), `100GiB` (2^30), `570K` to bytes. Raises UsageError."""
    expected = "a size such as 100GB, 570KiB or 1.5T"
    number, unit = _split_number_and_unit(text, expected)
    short = unit
    if unit.endswith("b") and unit != "b":
        short = unit[:-1]
    if short.endswith("i") and short[:-1] in _BINARY:
        return number * _BINARY[short[:-1]]
    if short not in _SIZES:
        raise UsageError(f"{text!r}: expected {expected}")
    return number * _SIZES[short]


def parse_seconds(text: str) -> float:
    """Parse `90s`, `15min`, `4h`, `2d` to seconds. Raises UsageError."""
    expected = "a time such as 90s, 15min, 4h or 2d"
    number, unit = _split_number_and_unit(text, expected)
    if unit not in _TIMES:
        raise UsageError(f"{text!r}: expected {expected}")
    return number * _TIMES[unit]
