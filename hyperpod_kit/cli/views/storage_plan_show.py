"""What `storage plan` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hyperpod_kit.cli.terminal.output import print_json, print_table, print_text, print_to_stderr, table_cell
from hyperpod_kit.command_line.tables import Column, TextTable
from hyperpod_kit.untrusted.text import counted

if TYPE_CHECKING:
    from hyperpod_kit.storage.plan.calibration import Calibration
    from hyperpod_kit.storage.plan.candidates import Band, StorageChoice
    from hyperpod_kit.storage.plan.plan import Plan


_CHOICE_COLUMNS = (
    "STORAGE",
    Column("SIZE", folds=True),
    Column("USD/MONTH", is_number=True),
    Column("WAITS"),
    Column("DURABLE", may_miss=True),
    Column("EVERY", may_miss=True),
    Column("GOODPUT", is_number=True),
)


def print_plan(storage_plan: Plan, as_json: bool) -> None:
    """The sizes, the kinds side by side, the choice and its configuration."""
    if as_json:
        print_json("storage plan", storage_plan.to_json())
        return
    from hyperpod_kit.storage.plan.sizing import format_bytes

    size = storage_plan.size
    parts = f"model {format_bytes(size.model)}, optimizer {format_bytes(size.optimizer)}"
    print_text(f"a checkpoint: {format_bytes(size.total)} ({parts}), {format_bytes(size.rank)} a rank")
    print_text(f"written in {counted(size.files, 'file')} at once, the largest {format_bytes(size.file)}")
    if size.shared_memory:
        print_text(f"/dev/shm of each node: {format_bytes(size.shared_memory)} for two captures of each rank")
    print_text("assumed:")
    for line in storage_plan.assumptions:
        print_text(f"  {line}")
    print_text()
    _print_candidates(storage_plan)
    # Once a kind, and not once for each size of it.
    for line in dict.fromkeys(
        f"{candidate.kind.title}: {text}"
        for candidate in storage_plan.candidates
        for text in (*candidate.refused, *candidate.notes)
    ):
        print_text(line, dim=True)
    _print_choice(storage_plan)
    for text in storage_plan.warnings:
        print_to_stderr(f"warning: {text}")


def _print_candidates(made: Plan) -> None:
    grid = TextTable((*_CHOICE_COLUMNS, "VERDICT"), "kinds of storage")
    for candidate in made.candidates:
        if candidate is made.chosen:
            verdict = "chosen"
        elif candidate.refused:
            verdict = "no"
        else:
            verdict = ""
        row = (
            candidate.kind.title,
            _describe_size(candidate),
            _format_monthly_cost(candidate),
            _format_duration_band(candidate.stall),
            _format_duration_band(candidate.durable),
            _format_duration(candidate.rhythm.every),
        )
        grid.add_row(*map(table_cell, (*row, f"{candidate.rhythm.goodput:.2%}", verdict)))
    print_table(grid)
    _print_lustre_cost_curve(made)


def _format_monthly_cost(choice: StorageChoice) -> str:
    if choice.cost.usd is None:
        return "unknown"
    return f"{choice.cost.usd:,.2f}"


def _print_lustre_cost_curve(made: Plan) -> None:
    if len(made.curve) < 2:
        return
    grid = TextTable(_CHOICE_COLUMNS, "FSx for Lustre: cost against stall")
    for choice in made.curve:
        row = (
            choice.kind.title,
            _describe_size(choice),
            _format_monthly_cost(choice),
            _format_duration_band(choice.stall),
            _format_duration_band(choice.durable),
            _format_duration(choice.rhythm.every),
        )
        grid.add_row(*map(table_cell, (*row, f"{choice.rhythm.goodput:.2%}")))
    print_table(grid)


def _print_choice(made: Plan) -> None:
    choice = made.chosen
    if choice is not None:
        print_text()
        print_text(f"chosen: {_candidate_title(choice)}, the cheapest that is not a bottleneck")
        if choice.headroom is not None:
            print_text(f"its bandwidth is {choice.headroom:.0%} more than the writers need")
        for key, price in choice.cost.prices:
            print_text(f"price of {key}: {price.usd} US dollars a {price.unit}, {price.date}, {price.source}")
        for name, value in _flatten_settings(made.recommended_settings()):
            print_text(f"  {name}: {value}")
    if made.data is not None:
        print_text(f"training data: {made.data.place}")
        for text in made.data.why:
            print_text(f"  {text}")


def _flatten_settings(values: dict[str, Any], key_prefix: str = "") -> list[tuple[str, Any]]:
    entries: list[tuple[str, Any]] = []
    for name, value in values.items():
        if isinstance(value, dict):
            entries += _flatten_settings(value, f"{key_prefix}{name}.")
        else:
            entries += [(key_prefix + name, value)]
    return entries


def _candidate_title(choice: StorageChoice) -> str:
    return ", ".join(filter(None, (choice.kind.title, _describe_size(choice))))


def _describe_size(choice: StorageChoice) -> str:
    """Return the size of a file system that is bought by size, "" for other storage."""
    if choice.lustre is None:
        return ""
    efa = ""
    if choice.lustre.efa:
        efa = ", EFA"
    return f"{choice.lustre.capacity:,} GiB of {choice.lustre.throughput} MB/s a TiB{efa}"


def _format_duration(seconds: float) -> str:
    if seconds < 600:
        return f"{seconds:.3g} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def _format_duration_band(band: Band) -> str:
    if band.high / max(band.low, 1e-9) < 1.001:
        return _format_duration(band.likely)
    return f"{_format_duration(band.low)} to {_format_duration(band.high)}"


def print_calibration_against_predictions(
    measurements: Calibration, as_json: bool, *, include_streaming_times: bool
) -> None:
    """Every measured time beside the predicted one; `published`: the tables of training data too."""
    from hyperpod_kit.storage.plan import calibration as fits
    from hyperpod_kit.storage.plan.data import compare_published_streaming_times

    cells, rows = (
        fits.compare_samples_with_predictions(measurements),
        compare_published_streaming_times() if include_streaming_times else [],
    )
    if as_json:
        print_json(
            "storage plan",
            {
                "source": measurements.source,
                "about": measurements.about,
                "cells": [
                    {
                        **vars(sample_fit.sample),
                        "predicted_seconds": sample_fit.predicted,
                        "error": sample_fit.relative_error,
                        "left_out_error": sample_fit.leave_one_out_relative_error,
                    }
                    for sample_fit in cells
                ],
                "streamed": [row._asdict() for row in rows],
            },
        )
        return
    grid = TextTable(
        (
            "WHAT",
            "STORAGE",
            "WRITER",
            Column("WRITERS", is_number=True),
            Column("MEASURED", is_number=True),
            Column("PREDICTED", is_number=True),
            Column("ERROR", is_number=True),
            Column("LEFT OUT", is_number=True, may_miss=True),
        ),
        f"{measurements.source}: seconds of a save, measured and predicted; LEFT OUT: the error without this cell",
    )
    for sample_fit in cells:
        if sample_fit.leave_one_out_relative_error is None:
            alone = ""
        else:
            alone = f"{sample_fit.leave_one_out_relative_error:+.1%}"
        seconds = (
            f"{sample_fit.sample.seconds:.2f}",
            f"{sample_fit.predicted:.2f}",
            f"{sample_fit.relative_error:+.1%}",
            alone,
        )
        about = (
            sample_fit.sample.label,
            sample_fit.sample.storage,
            sample_fit.sample.writer,
            sample_fit.sample.writers,
        )
        grid.add_row(*map(table_cell, (*about, *seconds)))
    print_table(grid)
    if not rows:
        return
    heads = ("COPY", "FIT", "STREAMED", "FIT", "PRINTED", "RECOMPUTED", "COST PRINTED", "COST")
    grid = TextTable(
        ("DATA", *(Column(head, is_number=True) for head in heads)),
        "training data streamed, compared with copied first: seconds of copying, streaming and training",
    )
    for row in rows:
        times = tuple(f"{value:,.0f}" for value in row[1:7])
        grid.add_row(*map(table_cell, (row.name, *times, f"{row.difference_printed}%", f"{row.difference:.4f}%")))
    print_table(grid)
    print_to_stderr(
        "the printed training time is ten times too small: 90 million rows, at 32 rows and 9.7 s a step, take 27.3 "
        "million s"
    )
