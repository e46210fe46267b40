"""The kinds of storage that a plan chooses from: what each can do at most, as documented, and what each lacks.

Sources: AWS's user guides of FSx for Lustre (performance of SSD file systems, capacities), EFS (limits), S3
(performance design patterns) and Mountpoint's doc/SEMANTICS.md, read in August and September 2026.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from hyperpod_kit.errors import UsageError
from hyperpod_kit.storage.plan.facts import GB

MB = 10**6
MIB = 2**20
FSX_THROUGHPUTS = (125, 250, 500, 1000)
"""MB/s a TiB that a persistent SSD file system is bought with."""

FSX_STEP = 2400
"""GiB: capacities are 1200, 2400 and multiples of 2400."""

S3_PUTS, S3_GETS = 3500, 5500
"""Requests a second of one prefix."""


@dataclass(frozen=True)
class StorageKind:
    """`shared`: other nodes see it, so a lost node loses nothing; `rename`: files can be renamed; `client`: bytes a
    second that one node can write, None: its network; `whole`: bytes a second of all nodes together, None: no limit is
    known; `then`: what has to happen before it is shared; `mounted`: programs write files there; `parts`: a file is an
    upload of at most 10,000 parts; `bought`: capacity and throughput are, LustreSize says which; `local`: no network is
    in its way; `price`, `write_price`: their keys among the prices; `near`: whose rate stands in for an unmeasured one;
    `published`: models that the published tables advise it for, from and to so many parameters, and how."""

    name: str
    title: str
    shared: bool = True
    rename: bool = True
    client: float | None = None
    whole: float | None = None
    then: str | None = None
    mounted: bool = True
    parts: bool = False
    bought: bool = False
    local: bool = False
    price: str = "s3"
    write_price: str | None = None
    near: str | None = None
    published: tuple[float, float, str] | None = None


KINDS = (
    StorageKind("nvme", "NVMe, then S3 by s5cmd", shared=False, then="nvme-to-s3", local=True),
    StorageKind(
        "mountpoint-s3",
        "S3 through Mountpoint",
        rename=False,
        parts=True,
        published=(0, 8.1e9, "full checkpoints through Mountpoint"),
    ),
    StorageKind("s3", "S3 without a mount", rename=False, mounted=False, near="nvme-to-s3"),
    StorageKind(
        "fsx-lustre", "FSx for Lustre", bought=True, published=(70e9, math.inf, "sharded checkpoints on FSx for Lustre")
    ),
    StorageKind("efs", "EFS", client=1500 * MIB, whole=5 * 2**30, price="efs", write_price="efs-write"),
)


@dataclass(frozen=True)
class LustreSize:
    """A persistent SSD file system: capacity in GiB, throughput in MB/s a TiB."""

    capacity: int
    throughput: int

    def __post_init__(self) -> None:
        if self.throughput not in FSX_THROUGHPUTS:
            raise UsageError(f"FSx with {self.throughput} MB/s a TiB: expected one of {FSX_THROUGHPUTS}")
        if self.capacity not in (1200, FSX_STEP) and (self.capacity % FSX_STEP or self.capacity <= 0):
            raise UsageError(f"FSx of {self.capacity} GiB: expected 1200, 2400 or a multiple of 2400")

    @property
    def bandwidth(self) -> float:
        """Bytes a second of the whole. AWS counts 1200 GiB as 1.2 TiB: 60 TiB of 250 are printed as 15,000 MB/s."""
        return self.capacity / 1000 * self.throughput * MB

    @property
    def room(self) -> float:
        """Bytes, of which nobody fills more than 80 %."""
        return self.capacity * 2**30

    @property
    def gigabytes(self) -> float:
        """What a month is charged for; AWS's own examples charge a 1,200 GiB system as 1,200 GB."""
        return float(self.capacity)


def lustre_for(bandwidth: float, room: float, throughput: int) -> LustreSize:
    """The smallest file system of that throughput with `bandwidth` bytes a second and `room` bytes."""
    capacity = max(bandwidth / (throughput * MB) * 1000, room / 2**30)
    if capacity <= 1200:
        return LustreSize(1200, throughput)
    return LustreSize(math.ceil(capacity / FSX_STEP) * FSX_STEP, throughput)


def gigabytes(size: float) -> float:
    """Bytes as S3 and EFS charge them."""
    return size / GB
