"""Markdown tables from results/raw/*.json: python report.py [--dir DIR]; medians, with the number of samples."""

from __future__ import annotations

import argparse
import glob
import json
import os
import statistics

from adapters import SYSTEMS

CALM = 0.15
"""A save beside which other processes used more cores than this is left out, unless all of them were disturbed."""

HEAD = (
    "system",
    "stall, s",
    "/ memcpy",
    "first save, s",
    "durable after, s",
    "hot load, s",
    "cold load, s",
    "peak memory / state",
    "loop speed while persisting: py",
    "mm",
    "saves",
)


def median_of_known(values):
    values = [value for value in values if value is not None]
    if not values:
        return None
    return statistics.median(values)


def format_number(value, digits=3):
    if value is None:
        return "–"
    return f"{value:.{digits}f}"


def load_runs(directory):
    """(size, mode, system) -> the good runs of both phases, and the errors of the others."""
    runs = {}
    for path in sorted(glob.glob(os.path.join(directory, "results", "raw", "[dt]*_p[0-9].json"))):
        if os.path.basename(path).startswith("digest_"):
            continue
        with open(path) as file:
            run = json.load(file)
        entry = runs.setdefault((run["size"], run["mode"], run["system"]), {"save": [], "load": [], "errors": []})
        if "error" in run:
            entry["errors"].append(run["error"].strip().splitlines()[-1])
        else:
            entry[run["phase"]].append(run)
    return runs


def calm_saves(run):
    """The saves that other processes did not disturb; all, where every one was disturbed."""
    calm = [save for save in run["saves"] if save["foreign"] <= CALM]
    if calm:
        return calm
    return run["saves"]


def count_wrong_tensors(entry):
    """Tensors that a load brought back with other bytes."""
    wrong = 0
    for run in entry["save"]:
        if run.get("hot_bad"):
            wrong += run["hot_bad"]
    for run in entry["load"]:
        wrong += sum(way["bad"] for way in run["load"].values())
    return wrong


def largest_memory_ratio(runs):
    """Peak memory beyond the state's own, in sizes of the state."""
    ratios = []
    for run in runs:
        for key in ("mem_first", "mem_second"):
            if key in run:
                ratios.append(run[key]["peak_extra"] / run["state_bytes"])
    return max(ratios, default=None)


def median_hot_load(runs):
    """Seconds of a load from memory."""
    seconds = []
    for run in runs:
        seconds += run.get("hot", [])
    return median_of_known(seconds)


def first_hot_error(runs):
    """The last line of the error that a load from memory ended with."""
    for run in runs:
        if "hot_error" in run:
            return run["hot_error"].strip().splitlines()[-1]
    return None


def median_cold_loads(runs):
    """Seconds of a load from storage, by the way in which it was loaded."""
    if not runs:
        return {}
    medians = {}
    for way in runs[0]["load"]:
        seconds = []
        for run in runs:
            seconds += run["load"][way]["cold"]
        medians[way] = median_of_known(seconds)
    return medians


def summarize_system(entry):
    """One system's medians over all its samples."""
    runs = entry["save"]
    pairs = []
    for run in runs:
        memcpy = statistics.median(run["memcpy"]["samples"])
        pairs += [(save, memcpy) for save in calm_saves(run)]
    durable = None
    if all(run["durable_to_disk"] for run in runs):
        durable = median_of_known(save["t_durable"] for save, _ in pairs if save["kind"] == "I")
    return {
        "name": runs[0]["name"],
        "saves": len(pairs),
        "wrong": count_wrong_tensors(entry),
        "stall": median_of_known(save["t_safe"] for save, _ in pairs),
        "ratio": median_of_known(save["t_safe"] / memcpy for save, memcpy in pairs),
        "first": median_of_known(run["first"]["t_safe"] for run in runs),
        "durable": durable,
        "hot": median_hot_load(runs),
        "hot_error": first_hot_error(runs),
        "cold": median_cold_loads(entry["load"]),
        "memory": largest_memory_ratio(runs),
        "py": median_of_known(save.get("loop_ratio") for save, _ in pairs if save["kind"] == "A"),
        "mm": median_of_known(save.get("loop_ratio") for save, _ in pairs if save["kind"] == "B"),
        "memcpy": median_of_known(memcpy for _, memcpy in pairs),
        "bytes": runs[0]["state_bytes"],
    }


def format_name(summary):
    if summary["wrong"]:
        return f"{summary['name']} **{summary['wrong']} tensors wrong**"
    return summary["name"]


def format_hot_load(summary):
    if summary["hot_error"]:
        return f"fails: {summary['hot_error'][:50]}"
    return format_number(summary["hot"])


def format_cold_loads(summary):
    texts = []
    for way, seconds in summary["cold"].items():
        text = format_number(seconds, 2)
        if way != "default":
            text += f" ({way})"
        texts.append(text)
    if not texts:
        return "–"
    return ", ".join(texts)


def format_row(summary):
    cells = [
        format_name(summary),
        format_number(summary["stall"]),
        format_number(summary["ratio"], 2),
        format_number(summary["first"], 2),
        format_number(summary["durable"], 2),
        format_hot_load(summary),
        format_cold_loads(summary),
        format_number(summary["memory"], 2),
        format_number(summary["py"], 2),
        format_number(summary["mm"], 2),
        str(summary["saves"]),
    ]
    return "| " + " | ".join(cells) + " |"


def format_mode_table(data, size, mode):
    keys = [key for key in SYSTEMS if (size, mode, key) in data]
    good = {key: summarize_system(data[size, mode, key]) for key in keys if data[size, mode, key]["save"]}
    if not good:
        return ""
    any_one = next(iter(good.values()))
    memcpy = median_of_known(summary["memcpy"] for summary in good.values())
    lines = [
        f"\n### {size}, {mode}: {any_one['bytes'] / 1e9:.3f} GB, memcpy {memcpy:.3f} s "
        f"({any_one['bytes'] / memcpy / 1e9:.1f} GB/s)\n",
        "| " + " | ".join(HEAD) + " |",
        "|" + " --- |" * len(HEAD),
    ]
    lines += [format_row(summary) for summary in sorted(good.values(), key=lambda summary: summary["stall"])]
    for key in keys:
        lines += [f"\n{key}: {error}" for error in data[size, mode, key]["errors"]]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", default=os.environ.get("CKPT_BENCH_DIR") or "ckpt-bench")
    data = load_runs(parser.parse_args().dir)
    for size in ("tiny", "0.5g", "2g"):
        for mode in ("single", "fsdp2", "fsdp1"):
            text = format_mode_table(data, size, mode)
            if text:
                print(text)


if __name__ == "__main__":
    main()
