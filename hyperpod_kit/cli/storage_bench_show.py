"""What `storage bench` prints: the mounts side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hyperpod_kit.cli.output import cell, console, data, out

if TYPE_CHECKING:
    from hyperpod_kit.storage.bench.run import MountReport

BAR = 30
CACHED = 0.05


def reports(found: list[MountReport], as_json: bool) -> None:
    """Everything of every mount."""
    if as_json:
        data([one.to_json() for one in found])
        return
    _probes(found)
    _streams(found)
    _saves(found)
    for one in found:
        for text in one.left_out:
            out(f"{one.mount.path}: left out: {text}")


def _probes(found: list[MountReport]) -> None:
    from rich.table import Table

    grid = Table(title="what they can do", title_justify="left")
    for column in ("", *(str(one.mount.path) for one in found)):
        grid.add_column(column)
    for name in dict.fromkeys(name for one in found for name in one.probes):
        words = []
        for one in found:
            result = one.probes.get(name)
            words.append("" if result is None else "yes" if result.can else f"no: {result.why}")
        grid.add_row(*map(cell, (name.replace("_", " "), *words)))
    for name, title in (("make", "make a small file, ms"), ("open", "open it, ms"), ("listed", "listed a second")):
        values = [getattr(one.small, name) if one.small else None for one in found]
        scale = 1.0 if name == "listed" else 1000.0
        grid.add_row(*map(cell, (title, *("" if value is None else f"{value * scale:,.2f}" for value in values))))
    console().print(grid)


def _streams(found: list[MountReport]) -> None:
    from rich.table import Table

    grid = Table(title="streams", title_justify="left")
    for column in ("mount", "", "by", "streams", "MB/s", "", "page cache"):
        grid.add_column(column)
    every = [(one, by, row) for one in found for by, rows in (("own", one.streams), ("fio", one.fio)) for row in rows]
    most = max((row.rate for _, _, row in every), default=1.0)
    for one, by, row in every:
        cache = "past it" if row.direct else f"{row.cached:.0%} cached" if row.cached > CACHED else "dropped"
        values = (
            one.mount.path,
            row.kind,
            by,
            row.streams,
            f"{row.rate / 1e6:,.0f}",
            "█" * round(BAR * row.rate / most),
        )
        grid.add_row(*map(cell, (*values, cache)))
    console().print(grid)
    for one in found:
        for kind in ("write", "read"):
            made = one.shape(kind)
            if made is not None:
                limit = (
                    "" if made.knee is None else f", {made.whole or 0:,.0f} B/s in all from {made.knee:.1f} streams on"
                )
                first = f"{made.first * 1000:.1f} ms, then {made.stream / 1e6:,.0f} MB/s a stream{limit}"
                out(f"{one.mount.path}, {kind}: {first} (within {made.error:.0%})")


def _saves(found: list[MountReport]) -> None:
    from rich.table import Table

    rows = [(one, row) for one in found for row in one.saves]
    if not rows:
        return
    grid = Table(title="checkpoints", title_justify="left")
    for column in ("mount", "saved by", "ranks", "GB", "seconds", "training waits", "MB/s", ""):
        grid.add_column(column)
    most = max(row.size / row.seconds for _, row in rows)
    for one, row in rows:
        rate = row.size / row.seconds
        waits = row.seconds if row.stall is None else row.stall
        times = (f"{row.seconds:.2f}", f"{waits:.2f}", f"{rate / 1e6:,.0f}", "█" * round(BAR * rate / most))
        grid.add_row(*map(cell, (one.mount.path, row.writer, row.label, f"{row.size / 1e9:.2f}", *times)))
    console().print(grid)
