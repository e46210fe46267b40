"""One kind of storage for one job: how long a save takes there, what it costs, and why it cannot be taken."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Iterator, Mapping

from hyperpod_kit.checkpoint.repository.store.s3_upload import part_size
from hyperpod_kit.storage.plan import catalog, interval, seeds
from hyperpod_kit.storage.plan.calibration import Calibration, Rate
from hyperpod_kit.storage.plan.catalog import LustreSize, StorageKind
from hyperpod_kit.storage.plan.facts import JobFacts, PlannedWriter
from hyperpod_kit.storage.plan.prices import Price
from hyperpod_kit.storage.plan.sizing import (
    DEFAULT_PART_MIB,
    MAX_PARTS,
    MIB,
    CheckpointSize,
    format_bytes,
    max_file_bytes,
    max_open_writers,
)
from hyperpod_kit.untrusted.text import counted

MAX_SHARE = 0.8
"""Of a file system's room that a plan uses."""

MAX_EXTRAPOLATION = 16
"""Times the largest measured file: beyond that what a save costs apart from its bytes has spoiled the rate."""

COPY_RATES = (2e9, 20e9)
"""Bytes a second at which a rank's state is copied to shared memory where it was not measured: slow, fast."""

MONTH = 730 * 3600.0


@dataclass(frozen=True)
class Band:
    """A time in seconds and how sure it is: `low` to `high`."""

    low: float
    likely: float
    high: float

    @staticmethod
    def around(value: float, relative_error: float) -> Band:
        """Make a band around a time, with a relative error either way."""
        return Band(value * (1 - relative_error), value, value * (1 + relative_error))

    def __add__(self, other: Band) -> Band:
        return Band(self.low + other.low, self.likely + other.likely, self.high + other.high)


@dataclass(frozen=True)
class Cost:
    """What a choice costs: US dollars a month, None where a price is not known, and the prices used."""

    usd: float | None
    prices: tuple[tuple[str, Price], ...]


@dataclass(frozen=True)
class StorageChoice:
    """`calibrated`: whether this kind and writer were measured; `durable`: until a save is where other nodes see it;
    `stall`: training stands still; `rhythm`: the best one, or the one asked for; `refused`: why not, nothing when it
    can be taken; `lustre`: the size to buy; `headroom`: share of its bandwidth that the writers leave; `requests`: of
    one save that are billed, `reads`: of reading it back; `load`: seconds to read it back after a node was lost."""

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
    requests: int = 0
    reads: int = 0
    load: float = 0.0

    @property
    def monthly_usd(self) -> float:
        """Return US dollars a month, infinite where a price is not known."""
        if self.cost.usd is None:
            return math.inf
        return self.cost.usd


INTERVAL_FACTORS = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0)
"""Times the interval of least waste that a kind is offered at, where each save costs money."""


def list_choices(
    kind: StorageKind,
    facts: JobFacts,
    size: CheckpointSize,
    calibration: Calibration | None,
    prices: Mapping[str, Price],
) -> list[StorageChoice]:
    """List the kind in every size that it can be bought in; where each save and each lost GPU hour cost money, in rarer
    rhythms too."""
    choices = [
        _make_choice(kind, facts, size, calibration, prices, lustre)
        for lustre in _candidate_lustre_sizes(kind, facts, size, calibration)
    ]
    if facts.every is not None or not facts.gpu_hour or not (kind.put_price or kind.write_price):
        return choices
    return [
        _make_choice(kind, facts, size, calibration, prices, choice.lustre, choice.rhythm.every * times)
        for choice in choices
        for times in INTERVAL_FACTORS
    ]


def _candidate_lustre_sizes(
    kind: StorageKind, facts: JobFacts, size: CheckpointSize, calibration: Calibration | None
) -> list[LustreSize | None]:
    if not kind.bought:
        return [None]
    throughputs = list(catalog.FSX_THROUGHPUTS)
    if facts.fsx_throughput:
        throughputs = [facts.fsx_throughput]
    room = size.total * (facts.keep + 1) / MAX_SHARE
    demand = _required_bytes_per_second(facts, size, _measured_or_nearest_rate(kind.name, facts, calibration)[0])
    return [
        lustre
        for throughput in throughputs
        for lustre in catalog.lustre_sizes_up_to_bandwidth(demand, room, throughput, facts.efa)
    ]


def count_put_requests_per_save(kind: StorageKind, facts: JobFacts, size: CheckpointSize) -> int:
    """Count the PUTs of one save: of each part of each file, and two more to begin and end an upload of several."""
    parts_of_files = _part_counts_of_files(kind, facts, size)
    uploads = sum(parts > 1 for parts in parts_of_files)
    return sum(parts_of_files) + 2 * uploads


def count_get_requests_per_load(kind: StorageKind, facts: JobFacts, size: CheckpointSize) -> int:
    """Count the GETs that read one save back, in the parts in which it was written."""
    return sum(_part_counts_of_files(kind, facts, size))


def storage_loads_per_month(facts: JobFacts) -> float:
    """Estimate how often a checkpoint is read back from storage: after each failure that leaves none in memory."""
    return MONTH / facts.mtbf * (1.0 - memory_survival_share(facts))


def memory_survival_share(facts: JobFacts) -> float:
    """Compute the share of failures that leave the newest save in some memory. Another's writer has none there."""
    if facts.writer is not PlannedWriter.HYPERPOD_KIT:
        return 0.0
    return facts.memory_share


def _part_counts_of_files(kind: StorageKind, facts: JobFacts, size: CheckpointSize) -> list[int]:
    """List the parts of each file of a save that S3 takes; none where requests are not billed."""
    if kind.puts is None:
        return []
    files = [size.model, size.optimizer]
    if facts.writer.is_sharded:
        files = [size.rank] * size.files
    parts = {file: max(1, math.ceil(file / _part_bytes(kind, facts, size, file))) for file in set(files) if file}
    return [parts[file] for file in files if file]


def _part_bytes(kind: StorageKind, facts: JobFacts, size: CheckpointSize, file_bytes: float) -> float:
    """Compute the bytes of one request."""
    if kind.parts:
        return float((facts.mountpoint_part_mib or size.part_mib) * MIB)
    if kind.then is not None:
        return max(catalog.S5CMD_PART, file_bytes / MAX_PARTS)
    return float(part_size(math.ceil(file_bytes)))


def _min_request_seconds(kind: StorageKind, facts: JobFacts, request_count: int) -> float:
    """Compute the least time that so many requests take."""
    if kind.puts is None:
        return 0.0
    if kind.whole_bucket:
        return request_count / kind.puts
    return request_count / (kind.puts * facts.prefixes)


def _count_writing_nodes(facts: JobFacts) -> int:
    """Count the nodes that write at once."""
    if facts.writer.is_sharded:
        return facts.nodes
    return 1


def _required_bytes_per_second(facts: JobFacts, size: CheckpointSize, rate: Rate) -> float:
    """Compute the bytes a second that a file system has to take so as not to be the bottleneck: all that the writers
    drive while training waits for them; behind training's back only what brings a save to its end in half an interval.
    """
    driven = min(rate.each * size.files, _count_writing_nodes(facts) * facts.network)
    if facts.writer.blocks_training:
        return driven
    between = facts.every or interval.young_interval(size.rank / COPY_RATES[0], facts.mtbf)
    return min(driven, 2 * size.total / between)


def _measured_or_nearest_rate(storage: str, facts: JobFacts, calibration: Calibration | None) -> tuple[Rate, bool]:
    """Look up the rate of this storage and writer, and whether it was measured; otherwise the slowest that the
    published tables have of a writer of that shape."""
    writer = facts.writer.value
    if calibration is not None:
        measured = calibration.fitted_rate(storage, writer)
        if measured is not None:
            return measured, True
    shape = "dcp" if facts.writer.is_sharded else "torch-save"
    storage = next((kind.near for kind in catalog.KINDS if kind.name == storage and kind.near), storage)
    near = (calibration or seeds.CHECKPOINTS).fitted_rate(storage, shape) or seeds.CHECKPOINTS.fitted_rate(
        storage, shape
    )
    if near is not None:
        return near, False
    known_rates = [seeds.CHECKPOINTS.fitted_rate(name, shape) for name in seeds.COLUMNS]
    return min((rate for rate in known_rates if rate is not None), key=lambda rate: rate.each), False


def _predict_write_time(
    storage: str,
    max_bytes_per_second: float,
    facts: JobFacts,
    size: CheckpointSize,
    calibration: Calibration | None,
    min_seconds: float,
) -> tuple[Band, bool]:
    """Predict the seconds until all bytes are on `storage`, and whether its rate was measured.

    `max_bytes_per_second` pass at most, and it takes at least `min_seconds`.
    """
    rate, measured = _measured_or_nearest_rate(storage, facts, calibration)
    at_limit = max(size.total / max_bytes_per_second, min_seconds)
    likely = max(rate.predict_seconds(size.total, size.files), at_limit)
    if measured:
        return Band.around(likely, rate.error), True
    return Band(at_limit, likely, 2 * likely), False


def _limit_in_bytes_per_second(
    kind: StorageKind, facts: JobFacts, size: CheckpointSize, lustre: LustreSize | None
) -> float:
    """Compute the bytes a second that pass at most: of a node, of one file, of the whole."""
    nodes = _count_writing_nodes(facts)
    if kind.local:
        return nodes * 100e9  # no network in its way
    client = kind.client
    if facts.efa and (kind.bought or kind.tiered):
        client = catalog.EFA_CLIENT
    limits = [nodes * min(facts.network, client or facts.network)]
    if kind.total_bandwidth is not None:
        limits.append(kind.total_bandwidth)
    if kind.tiered:
        limits.append(tiering_bytes_per_second_to_buy(kind, facts, size))
    if lustre is not None:
        limits += [lustre.bandwidth, size.files * lustre.file_bandwidth(size.file)]
    return min(limits)


def tiering_bytes_per_second_to_buy(kind: StorageKind, facts: JobFacts, size: CheckpointSize) -> float:
    """Compute the bytes a second to buy: what the writers drive, in whole steps."""
    demand = _required_bytes_per_second(facts, size, _measured_or_nearest_rate(kind.name, facts, None)[0])
    return max(1, math.ceil(demand / catalog.TIERING_STEP)) * catalog.TIERING_STEP


def _make_choice(
    kind: StorageKind,
    facts: JobFacts,
    size: CheckpointSize,
    calibration: Calibration | None,
    prices: Mapping[str, Price],
    lustre: LustreSize | None,
    every: float | None = None,
) -> StorageChoice:
    count = count_put_requests_per_save(kind, facts, size)
    least = _min_request_seconds(kind, facts, count)
    limit = _limit_in_bytes_per_second(kind, facts, size, lustre)
    if kind.then is None:
        written, calibrated = _predict_write_time(kind.name, limit, facts, size, calibration, least)
        durable = remote = written
    else:
        written, local_calibrated = _predict_write_time(kind.name, limit, facts, size, calibration, 0.0)
        # After a lost node all of it comes from there.
        network = _count_writing_nodes(facts) * facts.network
        remote, remote_calibrated = _predict_write_time(kind.then, network, facts, size, calibration, least)
        durable, calibrated = written + remote, local_calibrated and remote_calibrated
    stall = written
    if not facts.writer.blocks_training:
        stall = _predict_stall(kind, facts, size, calibration)
    failing = interval.FailureModel(
        facts.mtbf,
        stall.likely,
        max(0.0, durable.likely - stall.likely),
        memory_survival_share(facts),
        facts.restart,
        load_storage=remote.likely,
    )
    # Every save of ours goes to storage, and another's stands still for it: never closer than one takes.
    closest = max(1.0, durable.likely)
    rhythm = _requested_or_best_rhythm(failing, every or facts.every, closest)
    rate = _measured_or_nearest_rate(kind.name, facts, calibration)[0]
    headroom = None
    if lustre is not None:
        headroom = lustre.bandwidth / _required_bytes_per_second(facts, size, rate) - 1
    choice = StorageChoice(
        kind,
        calibrated,
        durable,
        stall,
        rhythm,
        _monthly_cost(kind, facts, size, prices, lustre, rhythm, count),
        notes=_list_notes(kind, facts, size, rate, calibrated),
        lustre=lustre,
        headroom=headroom,
        requests=count,
        reads=count_get_requests_per_load(kind, facts, size),
        load=remote.likely,
    )
    return replace(choice, refused=_list_refusals(choice, facts, size))


def _requested_or_best_rhythm(
    failing: interval.FailureModel, requested_interval: float | None, min_interval: float
) -> interval.Rhythm:
    """Choose the rhythm that was asked for, else the best one."""
    if requested_interval:
        return interval.rhythm_of_interval(failing, requested_interval)
    return interval.best_rhythm(failing, min_interval=min_interval, max_captures=1)


def _predict_stall(kind: StorageKind, facts: JobFacts, size: CheckpointSize, calibration: Calibration | None) -> Band:
    if calibration is not None:
        rate = calibration.fitted_rate(kind.name, facts.writer.value)
        if rate is not None and rate.stall is not None:
            return Band.around(size.rank / rate.stall, rate.error)
    slow, fast = COPY_RATES
    return Band(size.rank / fast, size.rank / (slow * fast) ** 0.5, size.rank / slow)


def _monthly_cost(
    kind: StorageKind,
    facts: JobFacts,
    size: CheckpointSize,
    prices: Mapping[str, Price],
    lustre: LustreSize | None,
    rhythm: interval.Rhythm,
    puts_per_save: int,
) -> Cost:
    if lustre is not None:
        return _total_cost(prices, {f"fsx-lustre-{lustre.throughput}": lustre.billed_gigabytes})
    amounts = {kind.price: catalog.bytes_to_gigabytes(size.total) * facts.keep}
    saves = MONTH * rhythm.goodput / rhythm.every
    if kind.write_price is not None:
        amounts[kind.write_price] = saves * catalog.bytes_to_gigabytes(size.total)
    if kind.put_price is not None:
        amounts[kind.put_price] = saves * puts_per_save / 1000
    loads = storage_loads_per_month(facts)
    if kind.read_price is not None:
        amounts[kind.read_price] = loads * catalog.bytes_to_gigabytes(size.total)
    if kind.get_price is not None:
        amounts[kind.get_price] = loads * count_get_requests_per_load(kind, facts, size) / 1000
    if kind.tiered:
        amounts["fsx-intelligent-tiering-throughput"] = tiering_bytes_per_second_to_buy(kind, facts, size) / catalog.MB
    return _total_cost(prices, amounts)


def _total_cost(prices: Mapping[str, Price], amounts: Mapping[str, float]) -> Cost:
    used = tuple((key, prices[key]) for key in amounts)
    costs = [price.usd * amounts[key] for key, price in used if price.usd is not None]
    if len(costs) < len(used):
        return Cost(None, used)
    return Cost(sum(costs), used)


def _list_notes(
    kind: StorageKind, facts: JobFacts, size: CheckpointSize, rate: Rate, calibrated: bool
) -> tuple[str, ...]:
    out = []
    if kind.parts and size.part_mib > DEFAULT_PART_MIB and facts.mountpoint_part_mib is None:
        out.append(f"a file of {format_bytes(size.file)} needs write_part_size_mib {size.part_mib}")
    if calibrated and facts.writer.is_sharded and size.files / facts.nodes > rate.writers:
        on_node = size.files // facts.nodes
        out.append(f"measured with {counted(rate.writers, 'writer')} a node, planned with {on_node}: measure that, too")
    each = size.total / size.files
    if calibrated and each > MAX_EXTRAPOLATION * rate.largest:
        out.append(
            f"measured with {format_bytes(rate.largest)} a writer, planned with {format_bytes(each)}: "
            "measure larger ones, too"
        )
    if kind.one_zone:
        out.append("in one zone: if the zone is lost, so is every checkpoint")
    if kind.bought and not facts.writer.is_sharded:
        out.append("one writer may be held back by one stripe: measure with a larger stripe count before buying more")
    return tuple(out)


def _list_refusals(choice: StorageChoice, facts: JobFacts, size: CheckpointSize) -> tuple[str, ...]:
    """List every reason why it cannot be taken."""
    return (
        *_writer_refusals(choice.kind, facts),
        *_part_size_and_memory_refusals(choice.kind, facts, size),
        *_rhythm_refusals(choice),
        *_cost_refusals(choice, facts),
    )


def _writer_refusals(kind: StorageKind, facts: JobFacts) -> Iterator[str]:
    if facts.writer.needs_rename and not kind.rename:
        yield f"{facts.writer.value} renames its files, which {kind.title} cannot"
    if kind.local and facts.writer is PlannedWriter.HYPERPOD_KIT and facts.nodes > 1:
        yield "hyperpod-kit commits one manifest over the shards of all nodes, which no node's own disk holds"
    if not kind.mounted and facts.writer is not PlannedWriter.HYPERPOD_KIT:
        yield f"{facts.writer.value} writes files, and there is no mount"


def _part_size_and_memory_refusals(kind: StorageKind, facts: JobFacts, size: CheckpointSize) -> Iterator[str]:
    if not kind.parts:
        return
    part = facts.mountpoint_part_mib or size.part_mib
    if size.file > max_file_bytes(part):
        yield (
            f"a file of {format_bytes(size.file)} is larger than 10,000 parts of {part} MiB "
            f"({format_bytes(max_file_bytes(part))}): write_part_size_mib {size.part_mib} or more"
        )
    if facts.mountpoint_memory is None:
        return
    most, needed = max_open_writers(facts.mountpoint_memory, part), -(-size.files // facts.nodes)
    if needed > most:
        yield f"{needed} files a node are open for writing, Mountpoint allows {most} with that memory"


def _rhythm_refusals(choice: StorageChoice) -> Iterator[str]:
    stall, durable, every = choice.stall.likely, choice.durable.likely, choice.rhythm.every
    if stall > every:
        yield f"training waits {stall:.0f} s for each {every:.0f} s of work"
    elif durable > every + stall:
        yield f"a save takes {durable:.0f} s, and the next one begins after {every:.0f} s"


def _cost_refusals(choice: StorageChoice, facts: JobFacts) -> Iterator[str]:
    if choice.cost.usd is None:
        missing_prices = ", ".join(key for key, price in choice.cost.prices if price.usd is None)
        yield f"its price is not known: --prices FILE with {missing_prices}"
    elif facts.budget is not None and choice.monthly_usd > facts.budget:
        yield f"{choice.monthly_usd:,.0f} US dollars a month, the budget is {facts.budget:,.0f}"
