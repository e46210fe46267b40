"""The page "the planner beside published figures": each figure with its source, what the plan says, and the verdict."""

from __future__ import annotations

from dataclasses import replace
from typing import Callable, Iterator, NamedTuple

from hyperpod_kit.storage.plan import candidates, catalog, failures, interval, plan, prices, seeds, sizing
from hyperpod_kit.storage.plan.facts import GIB, JobFacts, PlannedWriter

HEAD = """# The planner beside published figures

Made from the planner of this version; a test holds the table (`tests/unit/storage/plan/test_published.py`). The factor
is what the plan says, divided by what is published. `right` is within 5 %, `close` within 25 %, `rough` within a
factor of two. Where the planner takes a figure from its source, the row says so: it shows that the figure arrives, and
proves nothing.

| what | published | the plan | factor | verdict | source |
| --- | --- | --- | --- | --- | --- |
"""
HOUR = 3600.0
MEASURED = replace(
    JobFacts(seeds.PARAMETERS, 8, 1, 50_000 / 8 * HOUR, writer=PlannedWriter.DCP, every=4 * HOUR), fsx_throughput=250
)


class Figure(NamedTuple):
    """`planned`: what the planner says of the same; `taken`: it has it from there; `most`: the published figure is a
    range, of which `published` is the least."""

    what: str
    published: float
    unit: str
    planned: Callable[[], float]
    source: str
    taken: bool = False
    remedy: str = ""
    most: float | None = None

    @property
    def factor(self) -> float:
        """1 inside a range, else of its nearer end."""
        planned = self.planned()
        return planned / min(max(planned, self.published), self.most or self.published)

    @property
    def verdict(self) -> str:
        """In words, and what to do about it."""
        off = max(self.factor, 1 / self.factor)
        word = next((word for most, word in ((1.05, "right"), (1.25, "close"), (2.0, "rough")) if off <= most), "wrong")
        return "; ".join(filter(None, (word, "taken from there" if self.taken else "", self.remedy)))


def _gib(parameters: float) -> Callable[[], float]:
    return lambda: sizing.checkpoint_size(JobFacts(parameters, 8, 1, HOUR, dtype="bf16")).total / GIB


def _fleet_hours(gpus: int) -> Callable[[], float]:
    return lambda: failures.estimate_mtbf_seconds_from_fleets(gpus)[0] / HOUR


def _seconds(kind: str, writer: PlannedWriter) -> Callable[[], float]:
    def planned() -> float:
        facts = replace(MEASURED, writer=writer)
        size = sizing.checkpoint_size(facts)
        storage = next(one for one in catalog.KINDS if one.name == kind)
        made = candidates.list_choices(storage, facts, size, seeds.CHECKPOINTS, prices.PRICES)
        return min(one.durable.likely for one in made)

    return planned


def _one_prefix() -> float:
    facts = JobFacts(405.9e9, 16_384, 2048, 3 * HOUR, dtype="bf16")
    storage = next(one for one in catalog.KINDS if one.name == "s3")
    (made, *_) = candidates.list_choices(storage, facts, sizing.checkpoint_size(facts), None, prices.PRICES)
    return made.durable.likely


def _express() -> float:
    amounts = {"s3-express": 10.0, "s3-express-put": 1000.0, "s3-express-upload": 10_000 / 1024 * 1000 / 1024}
    return sum(amount * (prices.PRICES[key].usd or 0.0) for key, amount in amounts.items())


def _lost_of_three_hours() -> float:
    """Hours of work that one failure costs where a save is made each three hours."""
    facts = interval.FailureModel(112 * HOUR, stall=0.0)
    return interval.wasted_time_share(facts, 3 * HOUR) * 112


def _llama_goodput() -> float:
    facts = JobFacts(405.9e9, 16_384, 2048, failures.estimate_mtbf_seconds_from_fleets(16_384)[0], dtype="bf16")
    made = plan.make_plan(facts).chosen
    assert made is not None
    return made.rhythm.goodput * 100


MLPERF = "mlcommons/storage, Submission_guidelines.md, 2025-06-13 (its GB are GiB)"
BLOOM = "BigScience's model card and chronicles of BLOOM, 2022"
SEEDS = "the published tables of the first storage document (2024)"
LLAMA = "The Llama 3 Herd of Models, 2024"
RSC = "Kokolis and others, arXiv 2410.21680, 2024"

FIGURES = (
    Figure("checkpoint of 8B", 105, "GiB", _gib(8.03e9), MLPERF),
    Figure("checkpoint of 70B", 912, "GiB", _gib(70.553706e9), MLPERF),
    Figure("checkpoint of 405B", 5290, "GiB", _gib(405.85e9), MLPERF),
    Figure("checkpoint of 1T", 18_000, "GiB", _gib(1e12), MLPERF, remedy="`--bytes-per-parameter 19.3` for its layout"),
    Figure("checkpoint of BLOOM, 176B", 2.3e12 / GIB, "GiB", _gib(176.247e9), BLOOM),
    Figure(
        "state of a GPU, Llama 3",
        1,
        "MB",
        lambda: sizing.checkpoint_size(JobFacts(405.9e9, 16_384, 2048, HOUR, dtype="bf16")).rank / 1e6,
        LLAMA,
        most=4000,
    ),
    Figure("time to fail, 16,384 GPUs", 54 * 24 / 419, "h", _fleet_hours(16_384), LLAMA, taken=True),
    Figure("time to fail, 1,024 GPUs", 7.9, "h", _fleet_hours(1024), RSC, taken=True),
    Figure(
        "time to fail, 16,384 GPUs of RSC-1, projected",
        1.8,
        "h",
        _fleet_hours(16_384),
        RSC,
        remedy="fleets differ: count your own with `--ledger`",
    ),
    Figure(
        "time to fail, 131,072 GPUs of RSC-1, projected",
        0.23,
        "h",
        _fleet_hours(131_072),
        RSC,
        remedy="fleets differ: count your own with `--ledger`",
    ),
    Figure("time to fail, 100,000 H100", 0.5, "h", _fleet_hours(100_000), "Epoch AI, Hardware failures, 2024"),
    Figure("work lost to a failure, saves each 3 h", 1.5, "h", _lost_of_three_hours, BLOOM),
    Figure("goodput of Llama 3 405B, above 90 %", 90, "%", _llama_goodput, LLAMA, most=100),
    Figure(
        "save of 8B, 8 ranks, FSx 60 TiB of 250", 92, "s", _seconds("fsx-lustre", PlannedWriter.DCP), SEEDS, taken=True
    ),
    Figure(
        "save of 8B by rank 0, Mountpoint",
        332,
        "s",
        _seconds("mountpoint-s3", PlannedWriter.TORCH_SAVE),
        SEEDS,
        taken=True,
    ),
    Figure("save of 8B, 8 ranks, NVMe and s5cmd", 149.73, "s", _seconds("nvme", PlannedWriter.DCP), SEEDS, taken=True),
    Figure("FSx of 60 TiB of 250", 15_000, "MB/s", lambda: catalog.LustreSize(60_000, 250).bandwidth / 1e6, SEEDS),
    Figure(
        "FSx of 1.1 PiB of 1000, over",
        1.0,
        "TB/s",
        lambda: catalog.LustreSize(1_152_000, 1000).bandwidth / 1e12,
        "AWS HPC blog, Build and deploy a 1 TB/s file system, 2023-11",
    ),
    Figure(
        "save of 405B through one prefix of S3, parts of 16 MiB, 3,500 PUT/s",
        5.6826e12 / 2**24 / 3500,
        "s",
        _one_prefix,
        "S3 user guide, Optimizing performance (read 2026-11)",
    ),
    Figure(
        "best interval, stall 17.9 s, a failure in 97.7 h",
        3550,
        "s",
        lambda: interval.young_interval(17.9, 97.7 * HOUR),
        "Young, A first order approximation, 1974",
    ),
    Figure(
        "FSx of 1.2 TB of 125, a month",
        174,
        "US dollars",
        lambda: catalog.LustreSize(1200, 125).billed_gigabytes * (prices.PRICES["fsx-lustre-125"].usd or 0.0),
        "c3x.dev, aws_fsx_lustre_file_system (read 2026-11)",
    ),
    Figure(
        "S3 Express: 10 GB a month, 1,000,000 PUTs of 10 KB",
        1.10 + 1.13 + 0.03,
        "US dollars",
        _express,
        prices.FAQ + " (read 2026-11)",
        taken=True,
    ),
    Figure(
        "a node's share of 200 Gbit/s towards NFS, 504 B200",
        1.4,
        "%",
        lambda: next(kind.client or 0.0 for kind in catalog.KINDS if kind.name == "efs") / (200e9 / 8) * 100,
        "technical report of a 63-node B200 cluster, 2026; another NFS than EFS",
        most=10.4,
    ),
)

ADVICE_HEAD = """
## Beside the published advice

The tables that this kit began with advise full checkpoints through Mountpoint for 8 billion parameters and less, and
sharded checkpoints on FSx for Lustre for 70 billion and more that are saved often. Failures are those of the published
fleet nearest in size; a GPU hour costs 2.50 US dollars where the row says so.

| job | saved by | GPU hour | published advice | the plan | training waits | every | US dollars a month | agrees |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
"""


class AdvisedJob(NamedTuple):
    """A job of the size that the advice is for; `every` None: as often as wastes least."""

    name: str
    parameters: float
    ranks: int
    nodes: int
    dtype: str
    writer: PlannedWriter
    every: float | None = None
    gpu_hour: float = 0.0

    def plan(self) -> plan.Plan:
        facts = JobFacts(
            self.parameters,
            self.ranks,
            self.nodes,
            failures.estimate_mtbf_seconds_from_fleets(self.ranks)[0],
            dtype=self.dtype,
            writer=self.writer,
            every=self.every,
            gpu_hour=self.gpu_hour,
        )
        return plan.make_plan(facts, seeds.CHECKPOINTS)


ADVISED = (
    AdvisedJob("8B, 8 GPUs, saved each 4 h", 8.03e9, 8, 1, "fp32", PlannedWriter.TORCH_SAVE, 4 * HOUR),
    AdvisedJob("8B, 8 GPUs", 8.03e9, 8, 1, "bf16", PlannedWriter.HYPERPOD_KIT),
    AdvisedJob("70B, 64 GPUs, saved each 10 min", 70.6e9, 64, 8, "fp32", PlannedWriter.DCP, 600.0),
    AdvisedJob("70B, 512 GPUs", 70.6e9, 512, 64, "bf16", PlannedWriter.DCP),
    AdvisedJob("70B, 512 GPUs", 70.6e9, 512, 64, "bf16", PlannedWriter.HYPERPOD_KIT),
    AdvisedJob("70B, 512 GPUs", 70.6e9, 512, 64, "bf16", PlannedWriter.HYPERPOD_KIT, None, 2.5),
    AdvisedJob("405B, 16,384 GPUs", 405.9e9, 16_384, 2048, "bf16", PlannedWriter.HYPERPOD_KIT),
    AdvisedJob("405B, 16,384 GPUs", 405.9e9, 16_384, 2048, "bf16", PlannedWriter.HYPERPOD_KIT, None, 2.5),
    AdvisedJob("1T, 1,024 GPUs", 1e12, 1024, 128, "bf16", PlannedWriter.HYPERPOD_KIT),
    AdvisedJob("1T, 1,024 GPUs", 1e12, 1024, 128, "bf16", PlannedWriter.HYPERPOD_KIT, None, 2.5),
)


def page() -> str:
    """Markdown."""
    return "\n".join([HEAD + "\n".join(map(_row, FIGURES)), ADVICE_HEAD + "\n".join(_advice()), ""])


def _row(figure: Figure) -> str:
    published = _number(figure.published) + (f" to {_number(figure.most)}" if figure.most else "")
    figures = f"{published} {figure.unit} | {_number(figure.planned())} {figure.unit} | {figure.factor:.2f}"
    return f"| {figure.what} | {figures} | {figure.verdict} | {figure.source} |"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _advice() -> Iterator[str]:
    for job in ADVISED:
        one = job.plan().chosen
        advised = advice_for(job.parameters)
        price = f"{job.gpu_hour:.2f}" if job.gpu_hour else "not given"
        head = f"| {job.name} | {job.writer.value} | {price} | {advised.title} |"
        if one is None:
            yield f"{head} none | | | | no |"
            continue
        size = f", {one.lustre.capacity:,} GiB of {one.lustre.throughput}" if one.lustre else ""
        agrees = "yes" if one.kind is advised else "no"
        times = f"{one.stall.likely:,.2f} s | {one.rhythm.every:,.0f} s"
        yield f"{head} {one.kind.title}{size} | {times} | {one.monthly_usd:,.0f} | {agrees} |"


def advice_for(parameters: float) -> catalog.StorageKind:
    """The kind that is advised for such a model."""
    return next(
        kind
        for kind in catalog.KINDS
        if kind.published is not None and kind.published[0] <= parameters <= kind.published[1]
    )
