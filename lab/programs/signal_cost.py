#!/usr/bin/env python3
"""What a step costs that asks all ranks whether a warning signal came: `Manager(save_on_signal=True)` beside without.

    torchrun --nproc-per-node 2 lab/programs/signal_cost.py ROOT [--steps 1000] [--milliseconds 10]

Two Managers in one run, asked in turn, step by step, so that what else the machine does falls on both. A step is a
reduction of 1 MB, as of gradients, and a pause in which a GPU would compute; only `manager.step`, which saves nothing
here, is timed, and the reduction that follows it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import torch
import torch.distributed as dist

from hyperpod_kit.checkpoint import Manager, State


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=Path)
    parser.add_argument("--steps", type=int, default=1000, help="of each")
    parser.add_argument("--milliseconds", type=float, default=10.0, help="the pause of a step")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    state, gradients = State(extra={"weights": torch.zeros(1000)}), torch.ones(2**18)
    managers = {
        name: Manager(args.root / name, every=10**9, save_on_signal=name == "with") for name in ("without", "with")
    }
    for manager in managers.values():
        manager.restore(state)
    call_seconds: dict[str, list[float]] = {name: [] for name in managers}
    steps: dict[str, list[float]] = {name: [] for name in managers}
    for step in range(args.steps):
        for name, manager in managers.items():
            begin = time.perf_counter()
            time.sleep(args.milliseconds / 1000.0)
            dist.all_reduce(gradients)
            middle = time.perf_counter()
            manager.step(step, state)
            call_seconds[name].append(time.perf_counter() - middle)
            steps[name].append(time.perf_counter() - begin)
    for manager in managers.values():
        manager.close()
    if dist.get_rank() == 0:
        microseconds = {
            f"{what}_us": {name: round(1e6 * statistics.median(times), 1) for name, times in samples.items()}
            for what, samples in (("manager_step", call_seconds), ("whole_step", steps))
        }
        print(json.dumps({"ranks": dist.get_world_size(), "steps": args.steps, **microseconds}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
