"""Facts in, plan out: every kind of storage for one job, and the cheapest that does not hold it back."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Mapping

from hyperpod_kit.storage.plan import catalog, data, interval
from hyperpod_kit.storage.plan.calibration import Calibration
from hyperpod_kit.storage.plan.candidates import StorageChoice, candidate
from hyperpod_kit.storage.plan.facts import JobFacts, SavedBy
from hyperpod_kit.storage.plan.prices import PRICES, Price
from hyperpod_kit.storage.plan.sizing import CheckpointSize, checkpoint_size

SLACK = 0.01
"""A kind of storage is no bottleneck when it costs at most so much more of all time than the best one."""

HOURS = 730.0


@dataclass(frozen=True)
class Plan:
    """`chosen`: None when nothing can be taken; `calibration`: its source, None without one; `warnings` in words."""

    facts: JobFacts
    size: CheckpointSize
    candidates: tuple[StorageChoice, ...]
    chosen: StorageChoice | None
    calibration: str | None
    warnings: tuple[str, ...]
    data: data.DataAdvice | None

    def two_tiers(self) -> interval.Rhythm | None:
        """The best rhythm where memory and storage have schedules of their own, None when no failure leaves memory
        intact. Manager has one schedule: each of its saves goes to memory at once and to storage behind it."""
        one, share = self.chosen, self.facts.memory_share
        if one is None or not share or self.facts.writer.waits:
            return None
        persist = max(0.0, one.durable.likely - one.stall.likely)
        failing = interval.Failing(self.facts.mtbf, one.stall.likely, persist, share, self.facts.restart)
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
            "settings": self.settings(),
            "warnings": list(self.warnings),
            "data": None if self.data is None else self.data._asdict(),
        }


def make(facts: JobFacts, calibration: Calibration | None = None, prices: Mapping[str, Price] | None = None) -> Plan:
    """The plan. Without a calibration every time is a wide band, and the plan says so."""
    size = checkpoint_size(facts)
    found: list[StorageChoice] = []
    for kind in catalog.KINDS:
        found += candidate(kind, facts, size, calibration, prices or PRICES)
    chosen = _cheapest(facts, [one for one in found if not one.refused])
    advice = data.advise(facts.data) if facts.data is not None else None
    source = calibration.source if calibration is not None else None
    return Plan(facts, size, tuple(found), chosen, source, _warnings(facts, calibration, chosen), advice)


def _cheapest(facts: JobFacts, usable: list[StorageChoice]) -> StorageChoice | None:
    """The cheapest that is no bottleneck; where a GPU hour has a price, the one of least storage and lost hours."""
    if not usable:
        return None
    if facts.gpu_hour:
        hours = facts.ranks * HOURS * facts.gpu_hour
        return min(usable, key=lambda one: one.monthly + one.rhythm.avoidable * hours)
    least = min(one.rhythm.avoidable for one in usable)
    enough = [one for one in usable if one.rhythm.avoidable <= least + SLACK]
    return min(enough, key=lambda one: (round(one.monthly, 2), one.rhythm.avoidable))


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
    if facts.writer is SavedBy.OURS:
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
        "usd_a_month": rounded(one.monthly),
        "prices": {
            key: {"usd": price.usd, "date": price.date, "source": price.source} for key, price in one.cost.prices
        },
        "refused": list(one.refused),
        "notes": list(one.notes),
        "fsx": None if one.lustre is None else vars(one.lustre),
        "headroom": rounded(one.headroom),
    }
