"""What a save costs, a persist and a restore, beside what this machine can do in the same run.

    python bench/checkpoint.py [--megabytes 256] [--repeat 7] [--root DIR] [--json]

One process, a flat model of float32 tensors. Each figure is the median of `--repeat`, the first save apart (it lays
out and prefaults the slots). `floor`: the same bytes copied by one memcpy into prefaulted shared memory. `write`: the
same bytes by one plain write and fsync. Ratios are the figures to compare between machines; times are not.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Callable

import torch
from rich.console import Console
from rich.table import Table

from hyperpod_kit.checkpoint import Manager, State


def median_seconds(repeat: int, action: Callable[[], object]) -> float:
    spent = []
    for _ in range(repeat):
        begin = time.perf_counter()
        action()
        spent.append(time.perf_counter() - begin)
    return statistics.median(spent)


def floor(size: int, repeat: int) -> float:
    """Seconds of one memcpy of `size` bytes into prefaulted shared memory."""
    source = torch.ones(size, dtype=torch.uint8)
    descriptor = os.memfd_create("bench")
    try:
        os.ftruncate(descriptor, size)
        target = torch.frombuffer(mmap.mmap(descriptor, size), dtype=torch.uint8)
        target.fill_(0)
        return median_seconds(repeat, lambda: target.copy_(source))
    finally:
        os.close(descriptor)


def plain_write(size: int, repeat: int, directory: Path) -> float:
    """Seconds of one plain write and fsync of `size` bytes."""
    data = bytes(size)

    def write() -> None:
        path = directory / "plain"
        with open(path, "wb", buffering=0) as file:
            file.write(data)
            os.fsync(file.fileno())
        path.unlink()

    return median_seconds(repeat, write)


def measure(megabytes: int, repeat: int, directory: Path) -> dict[str, float]:
    torch.manual_seed(1)
    model = torch.nn.Module()
    for number in range(16):
        model.register_parameter(f"w{number}", torch.nn.Parameter(torch.randn(megabytes * (1 << 20) // 64)))
    state = State(model)
    root = directory / "root"
    manager = Manager(root)
    manager.restore(state)
    stalls, persists = [], []
    for step in range(repeat + 1):
        begin = time.perf_counter()
        handle = manager.save(step, state)
        if not handle.wait("durable", 300):
            raise SystemExit(f"the save of step {step} is {handle.state}: {handle.reason}")
        persists.append(time.perf_counter() - begin)
        stalls.append(handle.stall_ms / 1000)
    manager.close()
    os.environ["HPK_RESUME_MEMORY"] = "0"
    restores = []
    for _ in range(3):
        reader = Manager(root)
        begin = time.perf_counter()
        reader.restore(state)
        restores.append(time.perf_counter() - begin)
        reader.close()
    size = megabytes << 20
    copied, written = floor(size, repeat), plain_write(size, repeat, directory)
    stall, persist = statistics.median(stalls[1:]), statistics.median(persists[1:])
    return {"megabytes": megabytes, "floor_ms": copied * 1e3, "first_save_ms": stalls[0] * 1e3, "stall_ms": stall * 1e3,
            "stall_over_floor": stall / copied, "write_s": written, "durable_s": persist,
            "durable_over_write": persist / written, "restore_s": statistics.median(restores)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=256)
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--root", type=Path, help="directory to write under (default: the system's temporary one)")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hyperpod-kit-bench-", dir=args.root) as directory:
        found = measure(args.megabytes, args.repeat, Path(directory))
    if args.json:
        print(json.dumps(found, indent=2))
        return
    table = Table("figure", "value", title="checkpoint, one process", title_justify="left")
    for name, value in found.items():
        table.add_row(name, f"{value:.3g}")
    Console().print(table)


if __name__ == "__main__":
    main()
