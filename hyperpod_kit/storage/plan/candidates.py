"""One kind of storage for one job: how long a save takes there, what it costs, and why it cannot be taken."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Mapping

from hyperpod_kit.storage.plan import catalog, interval, seeds
from hyperpod_kit.storage.plan.calibration import Calibration, Rate
from hyperpod_kit.storage.plan.catalog import LustreSize, StorageKind
from hyperpod_kit.storage.plan.facts import JobFacts, SavedBy
from hyperpod_kit.storage.plan.prices import Price
from hyperpod_kit.storage.plan.sizing import DEFAULT_PART_MIB, CheckpointSize, gib, largest_file, open_writers

FULLEST = 0.8
"""Of a file system's room that a plan uses."""

FARTHEST = 16
"""Times the largest measured file: beyond that what a save costs apart from its bytes has spoiled the rate."""

COPY = (2e9, 20e9)
"""Bytes a second at which a rank's state is copied to shared memory where it was not measured: slow, fast."""

MONTH = 730 * 3600.0


@dataclass(frozen=True)
class Band:
    """A time in seconds and how sure it is: `low` to `high`."""

    low: float
    likely: float
    high: float

    @staticmethod
    def around(value: float, error: float) -> Band:
        """`error` relative, either way."""
        return Band(value * (1 - error), value, value * (1 + error))

    def __add__(self, other: Band) -> Band:
        return Band(self.low + other.low, self.likely + other.likely, self.high + other.high)


@dataclass(frozen=True)
class Cost:
    """US dollars a month, and the prices that they are from."""

    usd: float
    prices: tuple[tuple[str, Price], ...]


@dataclass(frozen=True)
class StorageChoice:
    """`calibrated`: whether this kind and writer were measured; `durable`: until a save is where other nodes see it;
    `stall`: training stands still; `rhythm`: the best one, or the one asked for; `refused`: why not, nothing when it
    can be taken; `lustre`: the size to buy; `headroom`: share of its bandwidth that the writers leave."""

    kind: StorageKind
    calibrated: bool
    durable: Band
    stall: Band
    rhythm: interval.Rhythm
    cost: Cost
    refused: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    lustre: LustreSize | None = None
    headroom: float | None = None

    @property
    def monthly(self) -> float:
        return self.cost.usd


def candidate(
    kind: StorageKind,
    facts: JobFacts,
    size: CheckpointSize,
    calibration: Calibration | None,
    prices: Mapping[str, Price],
) -> list[StorageChoice]:
    """The kind, once for each throughput that it can be bought with."""
    if not kind.bought:
        return [_made(kind, facts, size, calibration, prices, None)]
    wanted = [facts.fsx_throughput] if facts.fsx_throughput else list(catalog.FSX_THROUGHPUTS)
    room = size.total * (facts.keep + 1) / FULLEST
    demand = _demand(facts, size, _rate(kind.name, facts, calibration)[0])
    return [
        _made(kind, facts, size, calibration, prices, catalog.lustre_for(demand, room, throughput))
        for throughput in wanted
    ]


def _demand(facts: JobFacts, size: CheckpointSize, rate: Rate) -> float:
    """Bytes a second that a file system has to take so as not to be the bottleneck: all that the writers drive while
    training waits for them; behind training's back only what brings a save to its end in half an interval."""
    nodes = facts.nodes if facts.writer.sharded else 1
    driven = min(rate.each * size.files, nodes * facts.network)
    if facts.writer.waits:
        return driven
    between = facts.every or interval.young(size.rank / COPY[0], facts.mtbf)
    return min(driven, 2 * size.total / between)


def _rate(storage: str, facts: JobFacts, calibration: Calibration | None) -> tuple[Rate, bool]:
    """The rate of this storage and writer, and whether it was measured; otherwise the slowest that the published
    tables have of a writer of that shape."""
    writer = facts.writer.value
    measured = calibration.rate(storage, writer) if calibration is not None else None
    if measured is not None:
        return measured, True
    shape = "dcp" if facts.writer.sharded else "torch-save"
    storage = next((kind.near for kind in catalog.KINDS if kind.name == storage and kind.near), storage)
    near = (calibration or seeds.CHECKPOINTS).rate(storage, shape) or seeds.CHECKPOINTS.rate(storage, shape)
    if near is not None:
        return near, False
    known = [seeds.CHECKPOINTS.rate(name, shape) for name in seeds.COLUMNS]
    return min((rate for rate in known if rate is not None), key=lambda rate: rate.each), False


def _written(
    storage: str, limit: float, facts: JobFacts, size: CheckpointSize, calibration: Calibration | None
) -> tuple[Band, bool]:
    """Seconds until all bytes are on `storage`, of which `limit` bytes a second pass at most."""
    rate, measured = _rate(storage, facts, calibration)
    at_limit = size.total / limit
    likely = max(rate.seconds(size.total, size.files), at_limit)
    if measured:
        return Band.around(likely, rate.error), True
    return Band(at_limit, likely, 2 * likely), False


def _made(
    kind: StorageKind,
    facts: JobFacts,
    size: CheckpointSize,
    calibration: Calibration | None,
    prices: Mapping[str, Price],
    lustre: LustreSize | None,
) -> StorageChoice:
    nodes = facts.nodes if facts.writer.sharded else 1
    limit = nodes * min(facts.network, kind.client or facts.network)
    if kind.local:
        limit = nodes * 100e9  # no network in its way
    for whole in (kind.whole, lustre.bandwidth if lustre else None):
        limit = min(limit, whole) if whole else limit
    written, calibrated = _written(kind.name, limit, facts, size, calibration)
    durable = written
    if kind.then is not None:
        onward, also = _written(kind.then, nodes * facts.network, facts, size, calibration)
        durable, calibrated = written + onward, calibrated and also
    stall = written if facts.writer.waits else _stall(kind, facts, size, calibration)
    failing = interval.Failing(
        facts.mtbf,
        stall.likely,
        max(0.0, durable.likely - stall.likely),
        facts.memory_share if facts.writer is SavedBy.OURS else 0.0,
        facts.restart,
        load_storage=written.likely,
    )
    # Every save of ours goes to storage, and another's stands still for it: never closer than one takes.
    least = max(1.0, durable.likely)
    rhythm = interval.at(failing, facts.every) if facts.every else interval.best(failing, least=least, captures=1)
    rate = _rate(kind.name, facts, calibration)[0]
    made = StorageChoice(
        kind,
        calibrated,
        durable,
        stall,
        rhythm,
        _cost(kind, facts, size, prices, lustre, rhythm),
        notes=_notes(kind, facts, size, rate, calibrated),
        lustre=lustre,
        headroom=lustre.bandwidth / _demand(facts, size, rate) - 1 if lustre else None,
    )
    return StorageChoice(**{**vars(made), "refused": _refused(made, facts, size)})


def _stall(kind: StorageKind, facts: JobFacts, size: CheckpointSize, calibration: Calibration | None) -> Band:
    rate = calibration.rate(kind.name, facts.writer.value) if calibration else None
    if rate is not None and rate.stall is not None:
        return Band.around(size.rank / rate.stall, rate.error)
    slow, fast = COPY
    return Band(size.rank / fast, size.rank / (slow * fast) ** 0.5, size.rank / slow)


def _cost(
    kind: StorageKind,
    facts: JobFacts,
    size: CheckpointSize,
    prices: Mapping[str, Price],
    lustre: LustreSize | None,
    rhythm: interval.Rhythm,
) -> Cost:
    if lustre is not None:
        key = f"fsx-lustre-{lustre.throughput}"
        return Cost(lustre.gigabytes * prices[key].usd, ((key, prices[key]),))
    key = kind.price
    kept = catalog.gigabytes(size.total) * facts.keep
    used = [(key, prices[key])]
    usd = kept * prices[key].usd
    if kind.write_price is not None:
        saves = MONTH * rhythm.goodput / rhythm.every
        used.append((kind.write_price, prices[kind.write_price]))
        usd += saves * catalog.gigabytes(size.total) * prices[kind.write_price].usd
    return Cost(usd, tuple(used))


def _notes(kind: StorageKind, facts: JobFacts, size: CheckpointSize, rate: Rate, calibrated: bool) -> tuple[str, ...]:
    out = []
    if kind.parts and size.part_mib > DEFAULT_PART_MIB and facts.mountpoint_part_mib is None:
        out.append(f"a file of {gib(size.file)} needs write_part_size_mib {size.part_mib}")
    if calibrated and facts.writer.sharded and size.files / facts.nodes > rate.writers:
        on_node = size.files // facts.nodes
        out.append(f"measured with {rate.writers} writers a node, planned with {on_node}: measure that, too")
    each = size.total / size.files
    if calibrated and each > FARTHEST * rate.largest:
        out.append(f"measured with {gib(rate.largest)} a writer, planned with {gib(each)}: measure larger ones, too")
    if kind.bought and not facts.writer.sharded:
        out.append("one writer may be held back by one stripe: measure with a larger stripe count before buying more")
    return tuple(out)


def _refused(made: StorageChoice, facts: JobFacts, size: CheckpointSize) -> tuple[str, ...]:
    """Why it cannot be taken, everything at once."""
    out = []
    if facts.writer.needs_rename and not made.kind.rename:
        out.append(f"{facts.writer.value} renames its files, which {made.kind.title} cannot")
    if not made.kind.mounted and facts.writer is not SavedBy.OURS:
        out.append(f"{facts.writer.value} writes files, and there is no mount")
    if made.kind.parts:
        part = facts.mountpoint_part_mib or size.part_mib
        if size.file > largest_file(part):
            out.append(
                f"a file of {gib(size.file)} is larger than 10,000 parts of {part} MiB ({gib(largest_file(part))}): "
                f"write_part_size_mib {size.part_mib} or more"
            )
        if facts.mountpoint_memory is not None:
            most, needed = open_writers(facts.mountpoint_memory, part), -(-size.files // facts.nodes)
            if needed > most:
                out.append(f"{needed} files a node are open for writing, Mountpoint allows {most} with that memory")
    if made.stall.likely > made.rhythm.every:
        out.append(f"training waits {made.stall.likely:.0f} s for each {made.rhythm.every:.0f} s of work")
    elif made.durable.likely > made.rhythm.every + made.stall.likely:
        out.append(f"a save takes {made.durable.likely:.0f} s, and the next one begins after {made.rhythm.every:.0f} s")
    if facts.budget is not None and made.monthly > facts.budget:
        out.append(f"{made.monthly:,.0f} US dollars a month, the budget is {facts.budget:,.0f}")
    return tuple(out)
