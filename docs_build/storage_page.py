"""The page "which storage for what": what `storage plan` answers for jobs of every size, drawn."""

from __future__ import annotations

from typing import Iterator

from hyperpod_kit.storage.plan import data, failures, plan, seeds
from hyperpod_kit.storage.plan.facts import GIB, DataSet, JobFacts, PlannedWriter

HEAD = """# Which storage for what

Made from the planner of this version (`hyperpod-kit storage plan`) with the rates of the published tables that it is
checked against, so that these are examples and not promises: measure your own mounts, and plan with that
(`hyperpod-kit storage bench`, [how](../storage.md)). Prices are those of the planner, each with its day in its output.

## Checkpoints

Failures are those of the published fleet nearest in size ([which](storage-published.md)). Saves as often as wastes
least, unless a time is given.

| model | GPUs, nodes | saved by | every | storage | training waits | until durable | goodput | US dollars a month |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
"""
JOBS = (
    ("8B, fp32", 8.03e9, 8, 1, "fp32", 4 * 3600.0),
    ("8B, bf16", 8.03e9, 64, 8, "bf16", None),
    ("70B, fp32", 70.6e9, 64, 8, "fp32", 600.0),
    ("70B, bf16", 70.6e9, 512, 64, "bf16", None),
    ("405B, bf16", 405.9e9, 1024, 128, "bf16", None),
)
DATA = (
    ("text, 1,000 files of 100 MiB", DataSet(1000 * 100 * 2**20, 1000, 90e6, 3.3)),
    ("text, 183,960 files of 570 KiB", DataSet(570 * 1024 * 183_960, 183_960, 90e6, 3.3)),
    ("1.3 million images, 20,000 a second", DataSet(150e9, 1_281_167, 1_281_167, 20_000, text=False)),
)
WIDTH, BAR, LEFT = 640, 22, 230


def page() -> str:
    """Markdown with its picture inside."""
    rows, bars = [], []
    for name, parameters, ranks, nodes, dtype, every in JOBS:
        for writer in PlannedWriter:
            mtbf = failures.estimate_mtbf_seconds_from_fleets(ranks)[0]
            made = plan.make_plan(
                JobFacts(parameters, ranks, nodes, mtbf, dtype=dtype, writer=writer, every=every), seeds.CHECKPOINTS
            )
            rows.append(_row(name, f"{ranks}, {nodes}", writer, every, made))
            if made.chosen is not None:
                bars.append((f"{name}, {writer.value}", made.chosen.rhythm.avoidable))
    return "\n".join([HEAD + "\n".join(rows), "", *_picture(bars), "", *_data(), ""])


def _row(name: str, where: str, writer: PlannedWriter, every: float | None, made: plan.Plan) -> str:
    one = made.chosen
    if one is None:
        asked = f"{every:.0f} s" if every else "any"
        return f"| {name}, {made.size.total / GIB:,.0f} GiB | {where} | {writer.value} | {asked} | none | | | | |"
    size = f", {one.lustre.capacity:,} GiB of {one.lustre.throughput} MB/s a TiB" if one.lustre else ""
    times = (
        f"{one.rhythm.every:,.0f} s | {one.kind.title}{size} | {one.stall.likely:,.2f} s | {one.durable.likely:,.0f} s"
    )
    total = f"{made.size.total / GIB:,.0f} GiB"
    return (
        f"| {name}, {total} | {where} | {writer.value} | {times} | {one.rhythm.goodput:.2%} | {one.monthly_usd:,.0f} |"
    )


def _picture(bars: list[tuple[str, float]]) -> Iterator[str]:
    """Time that saving and lost work cost, one bar a row; no script and no other server."""
    most, height = max(value for _, value in bars), BAR * len(bars) + 10
    yield "Share of all time that saving and lost work cost, restarts left out:"
    yield ""
    yield f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="share of time lost" font-size="12">'
    for number, (name, value) in enumerate(bars):
        top, wide = number * BAR + 5, max(1.0, (WIDTH - LEFT - 80) * value / most)
        yield f'<text x="{LEFT - 8}" y="{top + 13}" text-anchor="end" fill="currentColor">{name}</text>'
        yield f'<rect x="{LEFT}" y="{top}" width="{wide:.1f}" height="{BAR - 6}" fill="#3f51b5"/>'
        yield f'<text x="{LEFT + wide + 6:.1f}" y="{top + 13}" fill="currentColor">{value:.2%}</text>'
    yield "</svg>"


def _data() -> Iterator[str]:
    yield "## Training data"
    yield ""
    yield "| data | where | why |"
    yield "| --- | --- | --- |"
    for name, one in DATA:
        found = data.advise_data_location(one)
        yield f"| {name} | {found.place} | {'; '.join(found.why)} |"
