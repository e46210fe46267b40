"""What `storage plan` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hyperpod_kit.cli.output import cell, console, data, out, say

if TYPE_CHECKING:
    from hyperpod_kit.storage.plan.calibration import Calibration
    from hyperpod_kit.storage.plan.candidates import Band, StorageChoice
    from hyperpod_kit.storage.plan.plan import Plan


def plan(made: Plan, as_json: bool) -> None:
    """The sizes, the kinds side by side, the choice and its configuration."""
    if as_json:
        data(made.to_json())
        return
    from hyperpod_kit.storage.plan.sizing import format_bytes

    size = made.size
    parts = f"model {format_bytes(size.model)}, optimizer {format_bytes(size.optimizer)}"
    out(f"a checkpoint: {format_bytes(size.total)} ({parts}), {format_bytes(size.rank)} a rank")
    out(f"written in {size.files} files at once, the largest {format_bytes(size.file)}")
    if size.shared_memory:
        out(f"/dev/shm of each node: {format_bytes(size.shared_memory)} for two captures of each rank")
    out("assumed:")
    for line in made.assumptions:
        out(f"  {line}")
    out()
    _kinds(made)
    # Once a kind, and not once for each size of it.
    for line in dict.fromkeys(
        f"{candidate.kind.title}: {text}"
        for candidate in made.candidates
        for text in (*candidate.refused, *candidate.notes)
    ):
        out(line, dim=True)
    _choice(made)
    for text in made.warnings:
        say(f"warning: {text}")


def _kinds(made: Plan) -> None:
    from rich.table import Table

    grid = Table(title="kinds of storage", title_justify="left")
    for column in ("storage", "training waits", "until durable", "every", "goodput", "US dollars a month", ""):
        grid.add_column(column)
    for candidate in made.candidates:
        if candidate is made.chosen:
            verdict = "chosen"
        elif candidate.refused:
            verdict = "no"
        else:
            verdict = ""
        row = (_title(candidate), _band(candidate.stall), _band(candidate.durable), _time(candidate.rhythm.every))
        grid.add_row(*map(cell, (*row, f"{candidate.rhythm.goodput:.2%}", _dollars(candidate), verdict)))
    console().print(grid)
    _curve(made)


def _dollars(choice: StorageChoice) -> str:
    if choice.cost.usd is None:
        return "not known"
    return f"{choice.cost.usd:,.2f}"


def _curve(made: Plan) -> None:
    from rich.table import Table

    if len(made.curve) < 2:
        return
    grid = Table(title="FSx for Lustre: money against stall", title_justify="left")
    for column in ("size", "training waits", "until durable", "every", "goodput", "US dollars a month"):
        grid.add_column(column)
    for choice in made.curve:
        row = (_title(choice), _band(choice.stall), _band(choice.durable), _time(choice.rhythm.every))
        grid.add_row(*map(cell, (*row, f"{choice.rhythm.goodput:.2%}", _dollars(choice))))
    console().print(grid)


def _choice(made: Plan) -> None:
    choice = made.chosen
    if choice is not None:
        out()
        out(f"chosen: {_title(choice)}, the cheapest that is no bottleneck")
        if choice.headroom is not None:
            out(f"its bandwidth is {choice.headroom:.0%} more than the writers need")
        for key, price in choice.cost.prices:
            out(f"price of {key}: {price.usd} US dollars a {price.unit}, {price.date}, {price.source}")
        for name, value in _flat(made.settings()):
            out(f"  {name}: {value}")
    if made.data is not None:
        out(f"training data: {made.data.place}")
        for text in made.data.why:
            out(f"  {text}")


def _flat(values: dict[str, Any], before: str = "") -> list[tuple[str, Any]]:
    entries: list[tuple[str, Any]] = []
    for name, value in values.items():
        if isinstance(value, dict):
            entries += _flat(value, f"{before}{name}.")
        else:
            entries += [(before + name, value)]
    return entries


def _title(choice: StorageChoice) -> str:
    if choice.lustre is None:
        return choice.kind.title
    efa = ""
    if choice.lustre.efa:
        efa = ", EFA"
    return f"{choice.kind.title}, {choice.lustre.capacity:,} GiB of {choice.lustre.throughput} MB/s a TiB{efa}"


def _time(value: float) -> str:
    if value < 600:
        return f"{value:.3g} s"
    if value < 7200:
        return f"{value / 60:.0f} min"
    return f"{value / 3600:.1f} h"


def _band(band: Band) -> str:
    if band.high / max(band.low, 1e-9) < 1.001:
        return _time(band.likely)
    return f"{_time(band.low)} to {_time(band.high)}"


def calibration(measurements: Calibration, as_json: bool, *, published: bool) -> None:
    """Every measured time beside the predicted one; `published`: the tables of training data too."""
    from hyperpod_kit.storage.plan import calibration as fits
    from hyperpod_kit.storage.plan.data import streamed_rows

    cells, rows = fits.calibration_cells(measurements), streamed_rows() if published else []
    if as_json:
        data(
            {
                "source": measurements.source,
                "about": measurements.about,
                "cells": [
                    {
                        **vars(sample_fit.sample),
                        "predicted_seconds": sample_fit.predicted,
                        "error": sample_fit.error,
                        "left_out_error": sample_fit.left_out_error,
                    }
                    for sample_fit in cells
                ],
                "streamed": [row._asdict() for row in rows],
            }
        )
        return
    from rich.table import Table

    grid = Table(title=f"{measurements.source}: seconds of a save, measured and predicted", title_justify="left")
    for column in ("what", "storage", "writer", "writers", "measured", "predicted", "error", "without this cell"):
        grid.add_column(column)
    for sample_fit in cells:
        if sample_fit.left_out_error is None:
            alone = ""
        else:
            alone = f"{sample_fit.left_out_error:+.1%}"
        seconds = (f"{sample_fit.sample.seconds:.2f}", f"{sample_fit.predicted:.2f}", f"{sample_fit.error:+.1%}", alone)
        about = (
            sample_fit.sample.label,
            sample_fit.sample.storage,
            sample_fit.sample.writer,
            sample_fit.sample.writers,
        )
        grid.add_row(*map(cell, (*about, *seconds)))
    console().print(grid)
    if not rows:
        return
    grid = Table(title="training data streamed, against copied first: seconds", title_justify="left")
    for column in (
        "data",
        "copy",
        "fit",
        "streamed",
        "fit",
        "training, printed",
        "recomputed",
        "cost, printed",
        "cost",
    ):
        grid.add_column(column)
    for row in rows:
        times = tuple(f"{value:,.0f}" for value in row[1:7])
        grid.add_row(*map(cell, (row.name, *times, f"{row.difference_printed}%", f"{row.difference:.4f}%")))
    console().print(grid)
    say(
        "the printed training time is ten times too small: 9.7 s a step, 90 million rows, 32 a step, are 27.3 million s"
    )
