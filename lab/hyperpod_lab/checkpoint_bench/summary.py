"""From raw samples to ratios. Medians throughout; a limit is the best of its ways."""

from __future__ import annotations

import statistics
from typing import Any

LOWER_IS_BETTER = ("stall_over_floor", "overlap_over_floor", "hot_restore_over_proof")
HIGHER_IS_BETTER = ("persist_over_limit", "cold_restore_over_limit")
BARS = {
    "stall_over_floor": 1.15,
    "overlap_over_floor": 0.25,
    "persist_over_limit": 0.9,
    "cold_restore_over_limit": 0.9,
    "hot_restore_over_proof": 1.35,
}
"""What the project promises of each."""


def best_median(ways: dict[str, list[float]]) -> float:
    """Return the seconds of the fastest way, by median; a way with fewer samples was given up as too slow."""
    most = max(len(samples) for samples in ways.values())
    return min(statistics.median(samples) for samples in ways.values() if len(samples) == most)


def summarize_run(run: dict[str, Any]) -> dict[str, Any]:
    """Seconds and ratios of one run; what was not measured is absent."""
    save = run["save"]
    floor, write = best_median(save["floor"]), best_median(save["write"])
    stall, persist = statistics.median(save["stall"]), statistics.median(save["persist"])
    figures: dict[str, Any] = {
        "bytes": save["bytes"],
        "floor_s": floor,
        "first_stall_s": save["first"]["stall"],
        "stall_s": stall,
        "write_s": write,
        "persist_s": persist,
        "start_s": save["start"],
        "samples": _sample_count_range(run),
        "stall_over_floor": stall / floor,
        "persist_over_limit": write / persist,
    }
    if "train" in run:
        overlap, block = run["train"]["overlap"], run["train"]["block"]
        lost = statistics.median(overlap["lost"])
        figures.update(
            overlap_lost_s=lost,
            overlap_over_floor=lost / floor,
            forward_backward_over_floor=run["train"]["forward_backward"] / floor,
            step_s=statistics.median(overlap["step"]),
            inflation_overlap_s=statistics.median(overlap["inflation"]),
            inflation_blocking_s=statistics.median(block["inflation"]),
        )
    if "cold" in run:
        read, cold = best_median(run["cold"]["limit"]), statistics.median(run["cold"]["seconds"])
        figures.update(
            read_s=read, cold_restore_s=cold, cold_restore_over_limit=read / cold, page_cache=run["cold"]["page_cache"]
        )
    if "hot" in run:
        hot, proof = statistics.median(run["hot"]["seconds"]), best_median(run["hot"]["proof"])
        figures.update(
            hot_restore_s=hot,
            hot_floor_s=best_median(run["hot"]["floor"]),
            hot_proof_s=proof,
            hot_restore_over_proof=hot / proof,
        )
    if "usage" in save:
        figures["usage"] = save["usage"]
    return figures


def _sample_count_range(run: dict[str, Any]) -> str:
    """Return the least and the largest number of samples of a figure of ours, as text."""
    counts = {
        len(run["save"]["stall"]),
        *(len(run[phase]["seconds"]) for phase in ("cold", "hot") if phase in run),
        *(len(run["train"][kind]["lost"]) for kind in ("overlap", "block") if "train" in run),
    }
    if len(counts) == 1:
        return str(min(counts))
    return f"{min(counts)} to {max(counts)}"


def worst_ratios(runs: list[dict[str, Any]]) -> dict[str, float | None]:
    """Return each ratio's worst value over the runs that have it; None when none has it."""
    worst_values: dict[str, float | None] = {}
    for names, choose in ((LOWER_IS_BETTER, max), (HIGHER_IS_BETTER, min)):
        for name in names:
            values = [run[name] for run in runs if name in run]
            worst_values[name] = None
            if values:
                worst_values[name] = choose(values)
    return worst_values
