"""The rows of data_rows.py as a table: in each cell processor time a sample, first batch, memory, and ratios to the
rival that is the fastest there."""

from __future__ import annotations

from typing import Any


def format_data_table(rows: list[dict[str, Any]], kit_kind: str) -> str:
    """Markdown: a line for each cell, a column for each loader, and what had no figures or other samples."""
    cells: dict[tuple[Any, ...], dict[str, dict[str, Any]]] = {}
    for row in rows:
        cells.setdefault((row["corpus"], row["place"], row["workers"], row["part"]), {})[row["kind"]] = row
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    names = {row["kind"]: f"{row['loader']} {row['version']}".strip() for row in rows}
    title = ["corpus, place, workers", *(names[kind] for kind in kinds), "ours to the fastest: processor, first batch"]
    lines = ["| " + " | ".join(title) + " |", "| --- " * len(title) + "|"]
    notes = []
    for (_, medium, workers, part), rows_by_kind in cells.items():
        any_row = next(iter(rows_by_kind.values()))
        what = f"{any_row['what']}, {medium}, {workers}"
        if part != 1:
            what += f", a part of {part:g}"
        good = {kind: row for kind, row in rows_by_kind.items() if row.get("right")}
        rivals = [row for kind, row in good.items() if kind != kit_kind]
        best = min(rivals, key=lambda row: row["us"], default=None)
        texts = [_format_cell(rows_by_kind.get(kind), best) for kind in kinds]
        lines.append("| " + " | ".join([what, *texts, _format_ratios(good.get(kit_kind), best)]) + " |")
        notes += [f"- {what}, {row['loader']}: {row['note']}" for row in rows_by_kind.values() if row["note"]]
    how = "Microseconds of processor a sample (to the fastest rival's), seconds to the first batch, MiB; * one pass."
    return "\n".join([*lines, "", how, *notes])


def _format_cell(row: dict[str, Any] | None, best: dict[str, Any] | None) -> str:
    if row is None or "us" not in row:
        return "-"
    once = "*"
    if row["passes"]:
        once = ""
    ratio = ""
    if best:
        ratio = f" ({row['us'] / best['us']:.2f})"
    return f"{row['us']:.1f}{once}{ratio}, {row['first']:.2f} s, {row['pss']}"


def _format_ratios(kit_row: dict[str, Any] | None, best: dict[str, Any] | None) -> str:
    if kit_row is None or best is None:
        return "-"
    return f"{kit_row['us'] / best['us']:.2f}, {kit_row['first'] / best['first']:.2f} ({best['loader']})"
