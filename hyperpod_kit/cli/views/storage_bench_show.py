"""What `storage bench` prints: the mounts side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hyperpod_kit.cli.terminal.output import print_json, print_table, print_text, table_cell
from hyperpod_kit.command_line.tables import Column, TextTable

if TYPE_CHECKING:
    from hyperpod_kit.storage.bench.run import MountReport

BAR = 30
CACHED = 0.05


def print_reports(mount_reports: list[MountReport], as_json: bool) -> None:
    """Print everything of every mount."""
    if as_json:
        print_json("storage bench", {"mounts": [report.to_json() for report in mount_reports]})
        return
    _print_probes_and_small_files(mount_reports)
    _print_streams(mount_reports)
    _print_saves(mount_reports)
    for report in mount_reports:
        for text in report.left_out:
            print_text(f"{report.mount.path}: left out: {text}")


def _print_probes_and_small_files(mount_reports: list[MountReport]) -> None:
    paths = [Column(str(report.mount.path), folds=True) for report in mount_reports]
    grid = TextTable(("PROBE", *paths), "capabilities")
    for name in dict.fromkeys(name for report in mount_reports for name in report.probes):
        texts = []
        for report in mount_reports:
            result = report.probes.get(name)
            if result is None:
                verdict = ""
            elif result.can:
                verdict = "yes"
            else:
                verdict = f"no: {result.why}"
            texts.append(verdict)
        grid.add_row(*map(table_cell, (name.replace("_", " "), *texts)))
    for name, title in (
        ("make", "create a small file, ms"),
        ("open", "open a small file, ms"),
        ("listed", "files listed per second"),
    ):
        values = [getattr(report.small, name) if report.small else None for report in mount_reports]
        scale = 1000.0
        if name == "listed":
            scale = 1.0
        grid.add_row(*map(table_cell, (title, *("" if value is None else f"{value * scale:,.2f}" for value in values))))
    print_table(grid)


def _print_streams(mount_reports: list[MountReport]) -> None:
    grid = TextTable(
        (
            "MOUNT",
            "KIND",
            "BY",
            Column("STREAMS", is_number=True),
            Column("MB/S", is_number=True),
            "PAGE CACHE",
            Column("", may_miss=True),
        ),
        "streams",
    )
    every = [
        (report, by, row)
        for report in mount_reports
        for by, rows in (("own", report.streams), ("fio", report.fio))
        for row in rows
    ]
    most = max((row.rate for _, _, row in every), default=1.0)
    for report, by, row in every:
        if row.direct:
            cache = "bypassed"
        elif row.cached > CACHED:
            cache = f"{row.cached:.0%} cached"
        else:
            cache = "dropped"
        values = (
            report.mount.path,
            row.kind,
            by,
            row.streams,
            f"{row.rate / 1e6:,.0f}",
            cache,
            "█" * round(BAR * row.rate / most),
        )
        grid.add_row(*map(table_cell, values))
    print_table(grid)
    for report in mount_reports:
        for kind in ("write", "read"):
            made = report.fit_stream_shape(kind)
            if made is not None:
                if made.knee is None:
                    limit = ""
                else:
                    limit = f", {made.whole or 0:,.0f} B/s in total from {made.knee:.1f} streams on"
                first = f"{made.first * 1000:.1f} ms, then {made.stream / 1e6:,.0f} MB/s a stream{limit}"
                print_text(f"{report.mount.path}, {kind}: {first} (within {made.error:.0%})")


def _print_saves(mount_reports: list[MountReport]) -> None:
    rows = [(report, row) for report in mount_reports for row in report.saves]
    if not rows:
        return
    numbers = [Column(head, is_number=True) for head in ("GB", "SECONDS", "WAITS", "MB/S")]
    grid = TextTable(
        ("MOUNT", "SAVED BY", Column("RANKS", may_miss=True), *numbers, Column("", may_miss=True)),
        "checkpoints; WAITS: seconds that training waits",
    )
    most = max(row.size / row.seconds for _, row in rows)
    for report, row in rows:
        rate = row.size / row.seconds
        if row.stall is None:
            waits = row.seconds
        else:
            waits = row.stall
        times = (f"{row.seconds:.2f}", f"{waits:.2f}", f"{rate / 1e6:,.0f}", "█" * round(BAR * rate / most))
        grid.add_row(*map(table_cell, (report.mount.path, row.writer, row.label, f"{row.size / 1e9:.2f}", *times)))
    print_table(grid)
