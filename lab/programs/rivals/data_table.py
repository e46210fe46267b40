"""The rows of data_rows.py as a table: in each cell processor time a sample, first batch, memory, and ratios to the
rival that is the fastest there."""

from __future__ import annotations

from typing import Any


def table(rows: list[dict[str, Any]], ours: str) -> str:
    """Markdown: a line for each cell, a column for each loader, and what had no figures or other samples."""
    cells: dict[tuple[Any, ...], dict[str, dict[str, Any]]] = {}
    for row in rows:
        cells.setdefault((row["corpus"], row["place"], row["workers"], row["part"]), {})[row["kind"]] = row
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    names = {row["kind"]: f"{row['loader']} {row['version']}".strip() for row in rows}
    title = ["corpus, place, workers", *(names[kind] for kind in kinds), "ours to the fastest: processor, first batch"]
    lines = ["| " + " | ".join(title) + " |", "| --- " * len(title) + "|"]
    notes = []
    for (_, place, workers, part), found in cells.items():
        any_row = next(iter(found.values()))
        what = f"{any_row['what']}, {place}, {workers}" + (f", a part of {part:g}" if part != 1 else "")
        good = {kind: row for kind, row in found.items() if row.get("right")}
        rivals = [row for kind, row in good.items() if kind != ours]
        best = min(rivals, key=lambda row: row["us"], default=None)
        texts = [_text(found.get(kind), best) for kind in kinds]
        lines.append("| " + " | ".join([what, *texts, _ratio(good.get(ours), best)]) + " |")
        notes += [f"- {what}, {row['loader']}: {row['note']}" for row in found.values() if row["note"]]
    how = "Microseconds of processor a sample (to the fastest rival's), seconds to the first batch, MiB; * one pass."
    return "\n".join([*lines, "", how, *notes])


def _text(row: dict[str, Any] | None, best: dict[str, Any] | None) -> str:
    if row is None or "us" not in row:
        return "-"
    once = "" if row["passes"] else "*"
    ratio = f" ({row['us'] / best['us']:.2f})" if best else ""
    return f"{row['us']:.1f}{once}{ratio}, {row['first']:.2f} s, {row['pss']}"


def _ratio(ours: dict[str, Any] | None, best: dict[str, Any] | None) -> str:
    if ours is None or best is None:
        return "-"
    return f"{ours['us'] / best['us']:.2f}, {ours['first'] / best['first']:.2f} ({best['loader']})"
