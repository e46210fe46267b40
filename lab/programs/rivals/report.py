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
    return statistics.median(values) if values else None


def format_number(value, digits=3):
    return "–" if value is None else f"{value:.{digits}f}"


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


def summarize_system(entry):
    """One system's medians over all its samples."""
    runs = entry["save"]
    pairs = []
    for run in runs:
        calm = [save for save in run["saves"] if save["foreign"] <= CALM] or run["saves"]
        pairs += [(save, statistics.median(run["memcpy"]["samples"])) for save in calm]
    idle = [save for save, _ in pairs if save["kind"] == "I"]
    memory = [
        run[key]["peak_extra"] / run["state_bytes"] for run in runs for key in ("mem_first", "mem_second") if key in run
    ]
    stored = all(run["durable_to_disk"] for run in runs)
    wrong = sum(run.get("hot_bad") or 0 for run in runs)
    wrong += sum(way["bad"] for run in entry["load"] for way in run["load"].values())
    return {
        "name": runs[0]["name"],
        "saves": len(pairs),
        "wrong": wrong,
        "stall": median_of_known(save["t_safe"] for save, _ in pairs),
        "ratio": median_of_known(save["t_safe"] / memcpy for save, memcpy in pairs),
        "first": median_of_known(run["first"]["t_safe"] for run in runs),
        "durable": median_of_known(save["t_durable"] for save in idle) if stored else None,
        "hot": median_of_known(value for run in runs for value in run.get("hot", [])),
        "hot_error": next((run["hot_error"].strip().splitlines()[-1] for run in runs if "hot_error" in run), None),
        "cold": {
            way: median_of_known(value for run in entry["load"] for value in run["load"][way]["cold"])
            for way in (entry["load"][0]["load"] if entry["load"] else {})
        },
        "memory": max(memory, default=None),
        "py": median_of_known(save.get("loop_ratio") for save, _ in pairs if save["kind"] == "A"),
        "mm": median_of_known(save.get("loop_ratio") for save, _ in pairs if save["kind"] == "B"),
        "memcpy": median_of_known(memcpy for _, memcpy in pairs),
        "bytes": runs[0]["state_bytes"],
    }


def format_row(summary):
    cold = ", ".join(
        format_number(value, 2) + ("" if way == "default" else f" ({way})") for way, value in summary["cold"].items()
    )
    hot = f"fails: {summary['hot_error'][:50]}" if summary["hot_error"] else format_number(summary["hot"])
    cells = [
        summary["name"] + (f" **{summary['wrong']} tensors wrong**" if summary["wrong"] else ""),
        format_number(summary["stall"]),
        format_number(summary["ratio"], 2),
        format_number(summary["first"], 2),
        format_number(summary["durable"], 2),
        hot,
        cold or "–",
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
    lines += [f"\n{key}: {error}" for key in keys for error in data[size, mode, key]["errors"]]
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
