#!/usr/bin/env python3
"""What a save costs that compares its replicas, beside one that does not: the same run, every other save compares.

    torchrun --nproc-per-node 2 lab/programs/compare_cost.py ROOT [--mib 256] [--saves 21] [--tensors 64] [--overlap]

Plain tensors that all ranks hold, as under DDP: each rank copies its part of them and, when it compares, reads all.
"""

from __future__ import annotations

import argparse
import json
import statistics

import torch
import torch.distributed as dist

from hyperpod_kit.checkpoint import Manager, State


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root")
    parser.add_argument("--mib", type=int, default=256, help="size of the state")
    parser.add_argument("--tensors", type=int, default=64)
    parser.add_argument("--saves", type=int, default=21)
    parser.add_argument("--overlap", action="store_true")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    items = args.mib * 2**20 // args.tensors // 4
    model = torch.nn.ParameterList([torch.nn.Parameter(torch.full((items,), float(n))) for n in range(args.tensors)])
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    state, manager = State(model, optimizer), Manager(args.root, compare=2, overlap=args.overlap)
    manager.restore(state)
    stalls: dict[str, list[float]] = {"compared": [], "not compared": []}
    for number in range(args.saves):
        handle = manager.save(number, state)
        optimizer.step()  # where an overlapped save is waited for
        # Only the save itself: nothing else is on its way.
        if not handle.wait("durable", 300):
            raise SystemExit(f"{handle}")
        if number > 1:  # the first ones compare in any case, and fault memory in
            kind = "compared"
            if handle.seq % 2:
                kind = "not compared"
            stalls[kind].append(handle.stall_ms)
    manager.close()
    if dist.get_rank() == 0:
        medians = {name: statistics.median(times) for name, times in stalls.items()}
        print(
            json.dumps(
                {
                    "ranks": dist.get_world_size(),
                    "state_mib": args.mib,
                    "overlap": args.overlap,
                    "saves": {name: len(times) for name, times in stalls.items()},
                    "median_stall_ms": {name: round(value, 1) for name, value in medians.items()},
                    "ratio": round(medians["compared"] / medians["not compared"], 2),
                }
            )
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
