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

EFA_STEPS = {125: 38_400, 250: 19_200, 500: 9_600, 1000: 4_800}
"""MB/s a TiB -> GiB of which the capacity of an EFA-enabled file system is a multiple (LustreGuide, storage
capacity)."""

ENA_CLIENT, EFA_CLIENT = 100e9 / 8, 700e9 / 8
"""Bytes a second of one client of FSx, without and with EFA. Of the LustreGuide, not confirmed for this kit."""

TIERING_STEP = 4000 * MB
"""Bytes a second that an Intelligent-Tiering file system is bought in (LustreGuide, throughput capacity)."""

S3_PUTS, S3_GETS = 3500, 5500
"""Requests a second of one prefix (S3 user guide, performance)."""

EXPRESS_PUTS = 100_000
"""Writes a second of one directory bucket, unless AWS is asked for more (S3 user guide, S3 Express One Zone)."""

S5CMD_PART = 50 * MIB
"""s5cmd's default --part-size."""

STRIPES = ((100 * MIB, 1), (10 * 2**30, 8), (100 * 2**30, 16), (math.inf, 32))
"""Bytes of a file up to which FSx's default layout gives it so many stripes."""

OST_GIB = 1200
"""GiB of one object storage target."""


@dataclass(frozen=True)
class StorageKind:
    """`shared`: other nodes see it, so a lost node loses nothing; `rename`: files can be renamed; `client`: bytes a
    second that one node can write, None: its network; `total_bandwidth`: bytes a second of all nodes together, None: no
    limit is known; `then`: what has to happen before it is shared; `mounted`: programs write files there; `parts`: a
    file is an upload of at most 10,000 parts; `bought`: capacity and throughput are, LustreSize says which; `local`: no
    network is in its way; `price`, `write_price`, `put_price`, `read_price`, `get_price`: their keys among the prices,
    of what is kept, of bytes and requests of a save, and of reading it back; `puts`: requests a second, of a prefix or
    of the bucket (`whole_bucket`); `tiered`: throughput alone is bought; `one_zone`: a lost zone loses it; `near`:
    whose rate stands in for an unmeasured one; `published`: models that the published tables advise it for, from and to
    so many parameters, and how."""

    name: str
    title: str
    shared: bool = True
    rename: bool = True
    client: float | None = None
    total_bandwidth: float | None = None
    then: str | None = None
    mounted: bool = True
    parts: bool = False
    bought: bool = False
    local: bool = False
    price: str = "s3"
    write_price: str | None = None
    put_price: str | None = None
    read_price: str | None = None
    get_price: str | None = None
    puts: float | None = None
    whole_bucket: bool = False
    tiered: bool = False
    one_zone: bool = False
    near: str | None = None
    published: tuple[float, float, str] | None = None


KINDS = (
    StorageKind(
        "nvme",
        "NVMe, then S3 by s5cmd",
        shared=False,
        then="nvme-to-s3",
        local=True,
        put_price="s3-put",
        get_price="s3-get",
        puts=S3_PUTS,
    ),
    StorageKind(
        "mountpoint-s3",
        "S3 through Mountpoint",
        rename=False,
        parts=True,
        put_price="s3-put",
        get_price="s3-get",
        puts=S3_PUTS,
        published=(0, 8.1e9, "full checkpoints through Mountpoint"),
    ),
    StorageKind(
        "s3",
        "S3 without a mount",
        rename=False,
        mounted=False,
        put_price="s3-put",
        get_price="s3-get",
        puts=S3_PUTS,
        near="nvme-to-s3",
    ),
    StorageKind(
        "s3-express",
        "S3 Express One Zone through Mountpoint",
        parts=True,
        price="s3-express",
        write_price="s3-express-upload",
        put_price="s3-express-put",
        read_price="s3-express-retrieval",
        get_price="s3-express-get",
        puts=EXPRESS_PUTS,
        whole_bucket=True,
        one_zone=True,
        near="mountpoint-s3",
    ),
    StorageKind(
        "fsx-lustre",
        "FSx for Lustre",
        client=ENA_CLIENT,
        bought=True,
        published=(70e9, math.inf, "sharded checkpoints on FSx for Lustre"),
    ),
    StorageKind(
        "fsx-intelligent-tiering",
        "FSx for Lustre, Intelligent-Tiering",
        client=ENA_CLIENT,
        tiered=True,
        price="fsx-intelligent-tiering",
        near="fsx-lustre",
    ),
    StorageKind(
        "efs",
        "EFS",
        client=1500 * MIB,
        total_bandwidth=5 * 2**30,
        price="efs",
        write_price="efs-write",
        read_price="efs-read",
    ),
)


@dataclass(frozen=True)
class LustreSize:
    """A persistent SSD file system: capacity in GiB, throughput in MB/s a TiB, `efa`: whether it is reached by EFA."""

    capacity: int
    throughput: int
    efa: bool = False

    def __post_init__(self) -> None:
        if self.throughput not in FSX_THROUGHPUTS:
            raise UsageError(f"FSx with {self.throughput} MB/s a TiB: expected one of {FSX_THROUGHPUTS}")
        if self.efa:
            step = EFA_STEPS[self.throughput]
            if self.capacity % step or self.capacity <= 0:
                raise UsageError(f"FSx of {self.capacity} GiB with EFA: expected a multiple of {step}")
            return
        if self.capacity not in (1200, FSX_STEP) and (self.capacity % FSX_STEP or self.capacity <= 0):
            raise UsageError(f"FSx of {self.capacity} GiB: expected 1200, 2400 or a multiple of 2400")

    @property
    def bandwidth(self) -> float:
        """Compute the bytes a second of the whole.

        AWS counts 1200 GiB as 1.2 TiB: 60 TiB of 250 are printed as 15,000 MB/s.
        """
        return self.capacity / 1000 * self.throughput * MB

    def file_bandwidth(self, file_bytes: float) -> float:
        """Compute the bytes a second of one file: of as many targets as the default layout stripes it over, and there
        are."""
        stripes = next(count for most, count in STRIPES if file_bytes <= most)
        return min(stripes, max(1, self.capacity // OST_GIB)) * OST_GIB / 1000 * self.throughput * MB

    @property
    def capacity_bytes(self) -> float:
        """Return the capacity in bytes, of which a plan fills at most 80 %."""
        return self.capacity * 2**30

    @property
    def billed_gigabytes(self) -> float:
        """The gigabytes that a month is charged for; AWS's own examples charge a 1,200 GiB system as 1,200 GB."""
        return float(self.capacity)


def smallest_lustre_size(
    bytes_per_second: float, min_bytes: float, mb_per_second_per_tib: int, efa: bool = False
) -> LustreSize:
    """Choose the smallest file system of that throughput with a bandwidth of `bytes_per_second` and room for
    `min_bytes`."""
    capacity = max(bytes_per_second / (mb_per_second_per_tib * MB) * 1000, min_bytes / 2**30)
    if efa:
        step = EFA_STEPS[mb_per_second_per_tib]
        return LustreSize(max(1, math.ceil(capacity / step)) * step, mb_per_second_per_tib, efa)
    if capacity <= 1200:
        return LustreSize(1200, mb_per_second_per_tib)
    return LustreSize(math.ceil(capacity / FSX_STEP) * FSX_STEP, mb_per_second_per_tib)


def lustre_sizes_up_to_bandwidth(
    bytes_per_second: float, min_bytes: float, mb_per_second_per_tib: int, efa: bool = False
) -> list[LustreSize]:
    """List the sizes from the smallest that has the room to the one that is no bottleneck, each about twice as large
    as the last."""
    first, last = (
        smallest_lustre_size(0, min_bytes, mb_per_second_per_tib, efa),
        smallest_lustre_size(bytes_per_second, min_bytes, mb_per_second_per_tib, efa),
    )
    sizes = [first]
    while sizes[-1].capacity * 2 < last.capacity:
        sizes.append(smallest_lustre_size(0, sizes[-1].capacity_bytes * 2, mb_per_second_per_tib, efa))
    if sizes[-1].capacity < last.capacity:
        sizes.append(last)
    return sizes


def bytes_to_gigabytes(size: float) -> float:
    """Convert bytes to gigabytes as S3 and EFS charge them."""
    return size / GB
