"""Facts in, plan out: every kind of storage for one job, and the cheapest that does not hold it back."""

from __future__ import annotations

import itertools
import math
from dataclasses import asdict, dataclass
from typing import Any, Mapping, Sequence

from hyperpod_kit.storage.plan import catalog, data, interval
from hyperpod_kit.storage.plan.calibration import Calibration
from hyperpod_kit.storage.plan.candidates import COPY_RATES, StorageChoice, list_choices, storage_loads_per_month
from hyperpod_kit.storage.plan.facts import BYTES_PER_PARAMETER, JobFacts, PlannedWriter
from hyperpod_kit.storage.plan.prices import PRICES, Price
from hyperpod_kit.storage.plan.sizing import CheckpointSize, checkpoint_size
from hyperpod_kit.untrusted.text import counted

MAX_EXTRA_WASTE = 0.01
"""A kind of storage is no bottleneck when it costs at most so much more of all time than the best one."""

NEGLIGIBLE_USD = 25.0
"""US dollars a month, below which money decides nothing: what loses less time wins."""

HOURS_A_MONTH = 730.0


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

    def best_two_tier_rhythm(self) -> interval.Rhythm | None:
        """Find the best rhythm where memory and storage have schedules of their own, None when no failure leaves memory
        intact. Manager has one schedule: each of its saves goes to memory at once and to storage behind it."""
        choice, share = self.chosen, self.facts.memory_share
        if choice is None or not share or self.facts.writer.blocks_training:
            return None
        persist = max(0.0, choice.durable.likely - choice.stall.likely)
        facts = self.facts
        failing = interval.FailureModel(
            facts.mtbf, choice.stall.likely, persist, share, facts.restart, load_storage=choice.load
        )
        return interval.best_rhythm(failing, min_interval=max(1.0, choice.stall.likely))

    def recommended_settings(self) -> dict[str, Any]:
        """Return the plan as configuration: what Manager takes, and what the mount needs. Empty without a choice."""
        if self.chosen is None:
            return {}
        out: dict[str, Any] = {
            "manager": {"every_seconds": round(self.chosen.rhythm.every), "keep_latest": self.facts.keep},
            "shared_memory_bytes": int(self.size.shared_memory),
        }
        tiers = self.best_two_tier_rhythm()
        if tiers is not None:
            out["two_tiers"] = {
                "memory_every_seconds": round(tiers.every),
                "storage_every_seconds": round(tiers.seconds_between_storage_saves),
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
            if self.chosen.lustre.efa:
                out["fsx"]["EfaEnabled"] = True
        return out

    def to_json(self) -> dict[str, Any]:
        """Return its JSON form: times in seconds, sizes in bytes, money in US dollars a month."""
        chosen = None
        if self.chosen is not None:
            chosen = self.candidates.index(self.chosen)
        facts = {**asdict(self.facts), "writer": self.facts.writer.value}
        return {
            "facts": facts,
            "size": {**self.size._asdict(), "total": self.size.total},
            "calibration": self.calibration,
            "chosen": chosen,
            "candidates": [_choice_json(choice) for choice in self.candidates],
            "fsx_curve": [_choice_json(choice) for choice in self.curve],
            "assumptions": list(self.assumptions),
            "settings": self.recommended_settings(),
            "warnings": list(self.warnings),
            "data": None if self.data is None else self.data._asdict(),
        }


def make_plan(
    facts: JobFacts, calibration: Calibration | None = None, prices: Mapping[str, Price] | None = None
) -> Plan:
    """Make the plan. Without a calibration every time is a wide band, and the plan says so."""
    size = checkpoint_size(facts)
    price_list = prices or PRICES
    choices_of_kinds = [list_choices(kind, facts, size, calibration, price_list) for kind in catalog.KINDS]
    choices = list(itertools.chain.from_iterable(choices_of_kinds))
    least = min((choice.rhythm.avoidable for choice in choices if not choice.refused), default=0.0)
    candidates = tuple(
        _best_choice(facts, group, least) for kind in choices_of_kinds for group in _group_by_throughput(kind)
    )
    chosen = _best_unrefused_choice(facts, candidates, least)
    curve = _cost_waste_frontier([choice for choice in choices if choice.lustre is not None])
    return Plan(
        facts,
        size,
        candidates,
        curve,
        chosen,
        None if calibration is None else calibration.source,
        list_assumptions(facts, size, chosen),
        _list_warnings(facts, calibration, chosen),
        None if facts.data is None else data.advise_data_location(facts.data),
    )


def _group_by_throughput(choices: list[StorageChoice]) -> list[list[StorageChoice]]:
    groups: dict[int, list[StorageChoice]] = {}
    for choice in choices:
        throughput = choice.lustre.throughput if choice.lustre else 0
        groups.setdefault(throughput, []).append(choice)
    return list(groups.values())


def _best_unrefused_choice(
    facts: JobFacts, candidates: Sequence[StorageChoice], least_avoidable_waste: float
) -> StorageChoice | None:
    usable = [choice for choice in candidates if not choice.refused]
    if not usable:
        return None
    return _best_choice(facts, usable, least_avoidable_waste)


def _best_choice(facts: JobFacts, choices: Sequence[StorageChoice], least_avoidable_waste: float) -> StorageChoice:
    """Choose the cheapest that is no bottleneck; where a GPU hour has a price, the one of least storage and lost
    hours.

    Where all are refused, or all are bottlenecks, the one that loses least.
    """
    usable = [choice for choice in choices if not choice.refused] or list(choices)
    if facts.gpu_hour:
        hours = facts.ranks * HOURS_A_MONTH * facts.gpu_hour
        return min(
            usable, key=lambda choice: (choice.monthly_usd + choice.rhythm.avoidable * hours, choice.rhythm.avoidable)
        )
    enough = [choice for choice in usable if choice.rhythm.avoidable <= least_avoidable_waste + MAX_EXTRA_WASTE]
    if not enough:
        return min(usable, key=lambda choice: (choice.rhythm.avoidable, choice.monthly_usd))
    return min(enough, key=lambda choice: (_number_of_price_steps(choice.monthly_usd), choice.rhythm.avoidable))


def _number_of_price_steps(usd: float) -> float:
    if not math.isfinite(usd):
        return usd
    return math.ceil(usd / NEGLIGIBLE_USD)


def _cost_waste_frontier(choices: Sequence[StorageChoice]) -> tuple[StorageChoice, ...]:
    """List the choices that are faster than everything cheaper, the cheapest first."""
    frontier: list[StorageChoice] = []
    for choice in sorted(choices, key=lambda candidate: (candidate.monthly_usd, candidate.rhythm.avoidable)):
        if not frontier or choice.rhythm.avoidable < frontier[-1].rhythm.avoidable:
            frontier.append(choice)
    return tuple(frontier)


def list_assumptions(facts: JobFacts, size: CheckpointSize, chosen: StorageChoice | None) -> tuple[str, ...]:
    """List everything that was taken for granted, a line each."""
    of_model, of_optimizer = BYTES_PER_PARAMETER[(facts.dtype, facts.optimizer)]
    each = f"{of_model} bytes a parameter of the model and {of_optimizer} of the optimizer ({facts.optimizer})"
    if facts.custom is not None:
        each = f"{facts.custom:g} bytes a parameter in all"
    reached_by = "by EFA" if facts.efa else "without EFA (--efa)"
    lines = [
        f"{facts.dtype} weights: {each}",
        f"one failure in {facts.mtbf / 3600:,.1f} h, {facts.mtbf_source}",
        f"{facts.restart:,.0f} s from a failure to the first step, not counting the time to read the checkpoint back",
        f"{facts.memory_share:.0%} of the failures leave the newest save in the memory of some node",
        f"each node reaches the network with {facts.network * 8 / 1e9:g} Gbit/s",
        f"S3 takes {catalog.S3_PUTS:,} requests a second of a prefix, and a checkpoint is spread over {facts.prefixes}",
        f"FSx is reached {reached_by}, and filled to 80 % at most",
        counted(facts.keep, "checkpoint is kept", "checkpoints are kept"),
    ]
    if not facts.writer.blocks_training:
        slow, fast = COPY_RATES
        lines.append(f"a rank copies its state to memory at {slow / 1e9:g} to {fast / 1e9:g} GB/s where not measured")
    if chosen is not None and chosen.requests:
        lines.append(
            f"a save is {chosen.requests:,} requests, and reading one back {chosen.reads:,}, which is done "
            f"{storage_loads_per_month(facts):,.1f} times a month: each is billed"
        )
    if chosen is not None:
        lines.append(f"after a lost node it is read back in {chosen.load:,.0f} s, as fast as it was written")
    if not facts.gpu_hour:
        lines.append(
            f"a GPU hour has no price (--gpu-hour-price), so up to {MAX_EXTRA_WASTE:.0%} of the time may be lost "
            "to save money"
        )
    return tuple(lines)


def _list_warnings(facts: JobFacts, calibration: Calibration | None, chosen: StorageChoice | None) -> tuple[str, ...]:
    out = []
    if calibration is None:
        out.append(
            "not calibrated: times range from what networks and file systems allow to twice what the writers of "
            "the published tables took. `hyperpod-kit storage bench MOUNT` measures your storage"
        )
    elif chosen is not None and not chosen.calibrated:
        out.append(f"{chosen.kind.title} with {facts.writer.value} is not in the calibration: its range is wide")
    if chosen is None:
        out.append("no option fits: see the reasons")
    differs = _published_advice(facts)
    if differs and chosen is not None and chosen.kind.name != differs[0]:
        out.append(f"the published advice for such a model is {differs[1]}; {_reason_against_advice(facts, chosen)}")
    return tuple(out)


def _published_advice(facts: JobFacts) -> tuple[str, str] | None:
    """Look up the advice of the published tables: (kind, words), None between 8 and 70 billion parameters."""
    for kind in catalog.KINDS:
        if kind.published is not None and kind.published[0] <= facts.parameters <= kind.published[1]:
            return kind.name, kind.published[2]
    return None


def _reason_against_advice(facts: JobFacts, chosen: StorageChoice) -> str:
    if facts.writer is PlannedWriter.HYPERPOD_KIT and not chosen.kind.rename:
        return f"this writer never renames and training waits for memory only, so {chosen.kind.title} is enough"
    return f"with these rates and prices {chosen.kind.title} costs less and is no bottleneck"


def _choice_json(choice: StorageChoice) -> dict[str, Any]:
    def rounded(value: Any) -> Any:
        return round(value, 6) if isinstance(value, float) else value

    return {
        "storage": choice.kind.name,
        "calibrated": choice.calibrated,
        "durable_seconds": {name: rounded(value) for name, value in vars(choice.durable).items()},
        "stall_seconds": {name: rounded(value) for name, value in vars(choice.stall).items()},
        "every_seconds": rounded(choice.rhythm.every),
        "goodput": rounded(choice.rhythm.goodput),
        "waste_of_saving": rounded(choice.rhythm.avoidable),
        "usd_a_month": rounded(choice.cost.usd),
        "requests_a_save": choice.requests,
        "requests_a_load": choice.reads,
        "load_seconds": rounded(choice.load),
        "prices": {
            key: {"usd": price.usd, "date": price.date, "source": price.source, "unit": price.unit}
            for key, price in choice.cost.prices
        },
        "refused": list(choice.refused),
        "notes": list(choice.notes),
        "fsx": None if choice.lustre is None else vars(choice.lustre),
        "headroom": rounded(choice.headroom),
    }
