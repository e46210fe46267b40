"""Facts in, plan out: every kind of storage for one job, and the cheapest that does not hold it back."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Mapping, Sequence

from hyperpod_kit.storage.plan import catalog, data, interval
from hyperpod_kit.storage.plan.calibration import Calibration
from hyperpod_kit.storage.plan.candidates import COPY, StorageChoice, loads_a_month, offers
from hyperpod_kit.storage.plan.facts import BYTES_PER_PARAMETER, JobFacts, SavedBy
from hyperpod_kit.storage.plan.prices import PRICES, Price
from hyperpod_kit.storage.plan.sizing import CheckpointSize, checkpoint_size

SLACK = 0.01
"""A kind of storage is no bottleneck when it costs at most so much more of all time than the best one."""

PETTY = 25.0
"""US dollars a month, below which money decides nothing: what loses less time wins."""

HOURS = 730.0


@dataclass(frozen=True)
class Plan:
    """`candidates`: the best offer of each kind, of FSx for each throughput; `curve`: offers of FSx, each of which
    loses less time than all that cost less; `chosen`: None when nothing can be taken; `calibration`: its source, None
    without one; `assumptions` and `warnings` in words."""

    facts: JobFacts
    size: CheckpointSize
    candidates: tuple[StorageChoice, ...]
    curve: tuple[StorageChoice, ...]
    chosen: StorageChoice | None
    calibration: str | None
    assumptions: tuple[str, ...]
    warnings: tuple[str, ...]
    data: data.DataAdvice | None

    def two_tiers(self) -> interval.Rhythm | None:
        """The best rhythm where memory and storage have schedules of their own, None when no failure leaves memory
        intact. Manager has one schedule: each of its saves goes to memory at once and to storage behind it."""
        one, share = self.chosen, self.facts.memory_share
        if one is None or not share or self.facts.writer.waits:
            return None
        persist = max(0.0, one.durable.likely - one.stall.likely)
        facts = self.facts
        failing = interval.Failing(facts.mtbf, one.stall.likely, persist, share, facts.restart, load_storage=one.load)
        return interval.best(failing, least=max(1.0, one.stall.likely))

    def settings(self) -> dict[str, Any]:
        """The plan as configuration: what Manager takes, and what the mount needs. Empty without a choice."""
        if self.chosen is None:
            return {}
        out: dict[str, Any] = {
            "manager": {"every_seconds": round(self.chosen.rhythm.every), "keep_latest": self.facts.keep},
            "shared_memory_bytes": int(self.size.shared_memory),
        }
        tiers = self.two_tiers()
        if tiers is not None:
            out["two_tiers"] = {
                "memory_every_seconds": round(tiers.every),
                "storage_every_seconds": round(tiers.storage_every),
                "goodput": round(tiers.goodput, 6),
            }
        if self.chosen.kind.parts:
            part = self.facts.mountpoint_part_mib or self.size.part_mib
            out["mount"] = {"kind": self.chosen.kind.name, "write_part_size_mib": part}
        if self.chosen.lustre is not None:
            out["fsx"] = {
                "StorageCapacity": self.chosen.lustre.capacity,
                "PerUnitStorageThroughput": self.chosen.lustre.throughput,
                "DeploymentType": "PERSISTENT_2",
                **({"EfaEnabled": True} if self.chosen.lustre.efa else {}),
            }
        return out

    def to_json(self) -> dict[str, Any]:
        """Everything, for programs; times in seconds, sizes in bytes, money in US dollars a month."""
        chosen = self.candidates.index(self.chosen) if self.chosen is not None else None
        facts = {**asdict(self.facts), "writer": self.facts.writer.value}
        return {
            "facts": facts,
            "size": {**self.size._asdict(), "total": self.size.total},
            "calibration": self.calibration,
            "chosen": chosen,
            "candidates": [_json(one) for one in self.candidates],
            "fsx_curve": [_json(one) for one in self.curve],
            "assumptions": list(self.assumptions),
            "settings": self.settings(),
            "warnings": list(self.warnings),
            "data": None if self.data is None else self.data._asdict(),
        }


def make(facts: JobFacts, calibration: Calibration | None = None, prices: Mapping[str, Price] | None = None) -> Plan:
    """The plan. Without a calibration every time is a wide band, and the plan says so."""
    size = checkpoint_size(facts)
    known = prices or PRICES
    offered = {kind: offers(kind, facts, size, calibration, known) for kind in catalog.KINDS}
    usable = [one for kind in offered.values() for one in kind if not one.refused]
    least = min((one.rhythm.avoidable for one in usable), default=0.0)
    candidates = tuple(_best(facts, group, least) for kind in offered.values() for group in _by_throughput(kind))
    chosen = _chosen(facts, candidates, least)
    curve = _trade_off([one for kind in offered.values() for one in kind if one.lustre is not None])
    return Plan(
        facts,
        size,
        candidates,
        curve,
        chosen,
        calibration.source if calibration is not None else None,
        assumptions(facts, size, chosen),
        _warnings(facts, calibration, chosen),
        data.advise(facts.data) if facts.data is not None else None,
    )


def _by_throughput(made: list[StorageChoice]) -> list[list[StorageChoice]]:
    groups: dict[int, list[StorageChoice]] = {}
    for one in made:
        groups.setdefault(one.lustre.throughput if one.lustre else 0, []).append(one)
    return list(groups.values())


def _chosen(facts: JobFacts, candidates: Sequence[StorageChoice], least: float) -> StorageChoice | None:
    usable = [one for one in candidates if not one.refused]
    return _best(facts, usable, least) if usable else None


def _best(facts: JobFacts, made: Sequence[StorageChoice], least: float) -> StorageChoice:
    """The cheapest that is no bottleneck; where a GPU hour has a price, the one of least storage and lost hours. Where
    all are refused, or all are bottlenecks, the one that loses least."""
    usable = [one for one in made if not one.refused] or list(made)
    if facts.gpu_hour:
        hours = facts.ranks * HOURS * facts.gpu_hour
        return min(usable, key=lambda one: (one.monthly + one.rhythm.avoidable * hours, one.rhythm.avoidable))
    enough = [one for one in usable if one.rhythm.avoidable <= least + SLACK]
    if not enough:
        return min(usable, key=lambda one: (one.rhythm.avoidable, one.monthly))
    return min(enough, key=lambda one: (_rounded(one.monthly), one.rhythm.avoidable))


def _rounded(usd: float) -> float:
    return math.ceil(usd / PETTY) if math.isfinite(usd) else usd


def _trade_off(made: Sequence[StorageChoice]) -> tuple[StorageChoice, ...]:
    """Those that are faster than everything cheaper, the cheapest first."""
    found: list[StorageChoice] = []
    for one in sorted(made, key=lambda one: (one.monthly, one.rhythm.avoidable)):
        if not found or one.rhythm.avoidable < found[-1].rhythm.avoidable:
            found.append(one)
    return tuple(found)


def assumptions(facts: JobFacts, size: CheckpointSize, chosen: StorageChoice | None) -> tuple[str, ...]:
    """Everything that was taken for granted, a line each."""
    of_model, of_optimizer = BYTES_PER_PARAMETER[(facts.dtype, facts.optimizer)]
    each = f"{of_model} bytes a parameter of the model and {of_optimizer} of the optimizer ({facts.optimizer})"
    if facts.custom is not None:
        each = f"{facts.custom:g} bytes a parameter in all"
    lines = [
        f"{facts.dtype} weights: {each}",
        f"one failure in {facts.mtbf / 3600:,.1f} h, {facts.mtbf_source}",
        f"{facts.restart:,.0f} s from a failure to the first step, reading the checkpoint back apart",
        f"{facts.memory_share:.0%} of the failures leave the newest save in some memory",
        f"each node reaches the network with {facts.network * 8 / 1e9:g} Gbit/s",
        f"S3 takes {catalog.S3_PUTS:,} requests a second of a prefix, and a checkpoint is spread over {facts.prefixes}",
        f"FSx is reached {'by EFA' if facts.efa else 'without EFA (--efa)'}, and filled to 80 % at most",
        f"{facts.keep} checkpoints stay",
    ]
    if not facts.writer.waits:
        slow, fast = COPY
        lines.append(f"a rank copies its state to memory at {slow / 1e9:g} to {fast / 1e9:g} GB/s where not measured")
    if chosen is not None and chosen.requests:
        lines.append(
            f"a save is {chosen.requests:,} requests, and reading one back {chosen.reads:,}, which is done "
            f"{loads_a_month(facts):,.1f} times a month: each is billed"
        )
    if chosen is not None:
        lines.append(f"after a lost node it is read back in {chosen.load:,.0f} s, as fast as it was written")
    if not facts.gpu_hour:
        lines.append(
            f"a GPU hour has no price (--gpu-hour-price), so up to {SLACK:.0%} of all time is lost for less money"
        )
    return tuple(lines)


def _warnings(facts: JobFacts, calibration: Calibration | None, chosen: StorageChoice | None) -> tuple[str, ...]:
    out = []
    if calibration is None:
        out.append(
            "not calibrated: times are between what networks and file systems allow and twice what the writers of the "
            "published tables took. `hyperpod-kit storage bench MOUNT` measures yours"
        )
    elif chosen is not None and not chosen.calibrated:
        out.append(f"{chosen.kind.title} with {facts.writer.value} is not in the calibration: its band is a wide one")
    if chosen is None:
        out.append("nothing can be taken as it is: see the reasons")
    differs = _published(facts)
    if differs and chosen is not None and chosen.kind.name != differs[0]:
        out.append(f"the published advice for such a model is {differs[1]}; {_why_not(facts, chosen)}")
    return tuple(out)


def _published(facts: JobFacts) -> tuple[str, str] | None:
    """The advice of the published tables: (kind, words), None between 8 and 70 billion parameters."""
    for kind in catalog.KINDS:
        if kind.published is not None and kind.published[0] <= facts.parameters <= kind.published[1]:
            return kind.name, kind.published[2]
    return None


def _why_not(facts: JobFacts, chosen: StorageChoice) -> str:
    if facts.writer is SavedBy.OURS and not chosen.kind.rename:
        return f"this writer never renames and training waits for memory only, so {chosen.kind.title} is enough"
    return f"with these rates and prices {chosen.kind.title} costs less and is no bottleneck"


def _json(one: StorageChoice) -> dict[str, Any]:
    def rounded(value: Any) -> Any:
        return round(value, 6) if isinstance(value, float) else value

    return {
        "storage": one.kind.name,
        "calibrated": one.calibrated,
        "durable_seconds": {name: rounded(value) for name, value in vars(one.durable).items()},
        "stall_seconds": {name: rounded(value) for name, value in vars(one.stall).items()},
        "every_seconds": rounded(one.rhythm.every),
        "goodput": rounded(one.rhythm.goodput),
        "waste_of_saving": rounded(one.rhythm.avoidable),
        "usd_a_month": rounded(one.cost.usd),
        "requests_a_save": one.requests,
        "requests_a_load": one.reads,
        "load_seconds": rounded(one.load),
        "prices": {
            key: {"usd": price.usd, "date": price.date, "source": price.source, "unit": price.unit}
            for key, price in one.cost.prices
        },
        "refused": list(one.refused),
        "notes": list(one.notes),
        "fsx": None if one.lustre is None else vars(one.lustre),
        "headroom": rounded(one.headroom),
    }
