"""What grows with the fleet: start, save, commit, decision, restore and reshard plans, a node's death, the end.

    python lab/programs/fleets [--ranks 64,512,2048,16384] [--dir DIR] [--json FILE]   (make scale; at most 20 minutes)

Every figure comes from the product's own code, in one process a part, with 1,024 descriptors allowed (soft) as a batch
script has them. The other ranks' agents are one process over loopback; collectives run over a simulated wire that
counts bytes. `cpu` is of the measured process alone; `s` is wall time beside everything else on the machine. `x2` is
the growth per doubling of the ranks since the size before: 1.00 is independent of them, 2.00 linear. A part that would
take more memory or CPU than there is, by its growth so far, is not run, and its bars count as missed.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Callable, Dict, List, NamedTuple, Optional, Tuple

HERE = Path(__file__).parent
SIZES = (64, 512, 2048, 16384)
PARTS = ("agents", "planning", "deciding")
MEMORY_MB = 7000.0
"""The most that a part may take by its growth so far: 8 GB, less what the other ranks' process takes."""
SECONDS = 300.0
"""As long as a part may take."""

Rows = Dict[str, Dict[str, float]]
Figures = Dict[int, Dict[str, Rows]]


class Bar(NamedTuple):
    """What the issue asks for: `value` of the rows of a size, in its unit, at most `limit`."""

    label: str
    size: int
    part: str
    value: Callable[[Rows], float]
    limit: float
    unit: str


def _longest_commit_cpu_seconds(rows: Rows) -> float:
    return max(row["cpu_s"] for name, row in rows.items() if name.startswith("commit"))


def _restore_plan_megabytes(rows: Rows) -> float:
    return rows["restore plan"]["bytes_in"] / 1e6


BARS: Tuple[Bar, ...] = (
    *(Bar("decision at 20 TB", size, "deciding", lambda rows: rows["decision"]["s"], 1.0, "s") for size in SIZES),
    Bar("commit on rank 0", 2048, "agents", _longest_commit_cpu_seconds, 1.0, "s CPU"),
    Bar("commit on rank 0", 16384, "agents", _longest_commit_cpu_seconds, 8.0, "s CPU"),
    Bar("rank 0's agent, peak", 16384, "agents", lambda rows: rows["peak"]["rss_mb"], 300.0, "MB"),
    Bar("received by a rank to plan a cold restore", 16384, "planning", _restore_plan_megabytes, 5.0, "MB"),
)


def predict_usage(figures: Figures, size: int, part: str, field: str) -> float:
    """What the part would take of `field` by its last two sizes, and at least in proportion; 0 when nothing is known.

    `s`: of CPU, of all its rows together (the time in which all other ranks are simulated says nothing about it, and
    has a deadline of its own); `rss_mb`: of its peak.
    """
    measured = [(ranks, _measured_usage(parts[part], field)) for ranks, parts in figures.items() if parts.get(part)]
    if not measured:
        return 0.0
    ranks, last = measured[-1]
    power = 1.0
    if len(measured) > 1 and measured[-2][1] > 0:
        power = min(2.0, max(1.0, math.log(last / measured[-2][1]) / math.log(ranks / measured[-2][0])))
    return last * (size / ranks) ** power


def _measured_usage(rows: Rows, field: str) -> float:
    if field == "rss_mb":
        return max(row.get("rss_mb", 0.0) for row in rows.values())
    return sum(row.get("cpu_s", 0.0) for row in rows.values())


def run_part(part: str, size: int, root: Path) -> Tuple[Rows, str]:
    """Run a part in a subprocess; returns its rows, and the reason why it did not finish, or ""."""

    def limited() -> None:
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))

    root.mkdir(parents=True, exist_ok=True)
    rows: Rows = {}
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        command = [sys.executable, str(HERE / f"{part}.py"), str(size), str(root)]
        process = subprocess.Popen(command, stdout=out, stderr=errors, preexec_fn=limited)
        try:
            failure = ""
            if process.wait(2 * SECONDS) != 0:
                failure = f"exit code {process.returncode}"
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            failure = f"not done after {2 * SECONDS:g} s"
        out.seek(0)
        errors.seek(0)
        for line in out:
            if line.startswith("{"):
                rows.update(json.loads(line))
        last_error = "".join(errors.read().strip().splitlines()[-1:])
    if failure:
        return rows, f"{failure}: {last_error}"
    return rows, ""


def print_figures(figures: Figures, size: int, part: str) -> None:
    """A table of what was measured, with the growth since the size before."""
    rows = figures[size].get(part, {})
    before = next(
        ((n, figures[n][part]) for n in sorted(figures, reverse=True) if n < size and figures[n].get(part)), None
    )
    for name, row in rows.items():
        if name == "files":
            file_sizes = ", ".join(f"{file} {amount / 1e6:.2f} MB" for file, amount in row.items())
            print(f"{size:>6}  files of a commit: {file_sizes}")
            continue
        cells = []
        for field, unit, scale in (
            ("s", "s", 1),
            ("cpu_s", "s cpu", 1),
            ("rss_mb", "MB", 1),
            ("bytes_in", "kB in", 1e3),
            ("bytes_out", "kB out", 1e3),
        ):
            if field in row:
                cells.append(f"{row[field] / scale:,.2f} {unit}{_format_growth(before, name, row, field, size)}")
        more = [f"{key} {value:g}" for key, value in row.items() if key in ("unasked", "wrong", "amplification")]
        print(f"{size:>6}  {name:<28}{'  '.join([*cells, *more])}", flush=True)


def _format_growth(before: Optional[Tuple[int, Rows]], name: str, row: Dict[str, float], field: str, size: int) -> str:
    if before is None or before[1].get(name, {}).get(field, 0) <= 0 or row[field] <= 0:
        return ""
    return f" (x2 {(row[field] / before[1][name][field]) ** (1 / math.log2(size / before[0])):.2f})"


def describe_bars(figures: Figures, sizes: List[int]) -> List[str]:
    """Each bar of the sizes that were asked for: met, or missed and why."""
    lines = []
    for bar in BARS:
        if bar.size not in sizes:
            continue
        try:
            figure = bar.value(figures[bar.size][bar.part])
            is_met, measured = figure < bar.limit, f"{figure:.2f} {bar.unit}"
        except (KeyError, ValueError):
            is_met, measured = False, "not run"
        verdict = "MISSED"
        if is_met:
            verdict = "met"
        lines.append(f"{verdict:<7} {bar.label} at {bar.size:,} ranks: {measured}, wanted < {bar.limit:g} {bar.unit}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default=",".join(map(str, SIZES)), help="sizes of the fleets, from small to large")
    parser.add_argument("--parts", default=",".join(PARTS), help="what is measured; planning needs what agents leave")
    parser.add_argument("--dir", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--json", type=Path, help="all figures, for a machine")
    args = parser.parse_args()
    sizes = [int(text) for text in args.ranks.split(",")]
    figures: Figures = {}
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="hyperpod-kit-fleets-", dir=args.dir) as directory:
        for size in sizes:
            figures[size] = {}
            for part in args.parts.split(","):
                kept_in = "saved"
                if part == "deciding":
                    kept_in = "deciding"
                root = Path(directory, kept_in, str(size), "root")
                seconds, memory = predict_usage(figures, size, part, "s"), predict_usage(figures, size, part, "rss_mb")
                if seconds > SECONDS or memory > MEMORY_MB:
                    print(f"{size:>6}  {part}: not run: by its growth {memory / 1000:.1f} GB, {seconds:.0f} s of CPU")
                    continue
                if part == "planning" and not (root / "LATEST").exists():
                    print(f"{size:>6}  {part}: not run: nothing was committed")
                    continue
                figures[size][part], failure = run_part(part, size, root)
                print_figures(figures, size, part)
                if failure:
                    print(f"{size:>6}  {part}: {failure}")
            shutil.rmtree(Path(directory), ignore_errors=True)
            Path(directory).mkdir(exist_ok=True)
    print("\n".join(["", *describe_bars(figures, sizes), f"{time.monotonic() - begin:.0f} s in all"]))
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
