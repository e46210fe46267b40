#!/usr/bin/env python3
"""A rank of lab/programs/two_cadences.py: steps of a given length, over a state that says which step it is of.

It tells its parent, a line of JSON each: what it restored and whether every element of it is of that step, each step
that all ranks begin, and what became of each save.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import warnings

import torch
import torch.distributed as dist

from hyperpod_kit.checkpoint import Handle, Manager, Restored, State
from hyperpod_kit.checkpoint.ranks.collectives import Ranks
from hyperpod_kit.checkpoint.saves.save_schedule import Cadences


def run_rank_and_exit(argv: list[str], env: dict[str, str], output: str) -> None:
    """Run a rank in this process, which has torch already, with its output in `output`, then exit."""
    out = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.environ.update(env)
    main(argv)
    os._exit(0)


def tier_of_start(start: object) -> str:
    """Return where a state was restored from; "" for a run that begins."""
    if isinstance(start, Restored):
        return start.tier
    return ""


def save_if_due(manager: Manager, cadences: Cadences, state: State, step: int) -> Handle | None:
    """Save where a cadence asks for it, with a wait for a slot."""
    tier = cadences.due(step)
    if tier is None:
        return None
    return manager.save(step, state, on_busy="wait", tier=tier)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root")
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--world", type=int, default=1)
    parser.add_argument("--store", default="", help="a file by which ranks find each other")
    parser.add_argument("--mb", type=float, default=100.0, help="state of each rank")
    parser.add_argument("--steps", type=int, default=10**9, help="so many, then close")
    parser.add_argument("--step-ms", type=float, default=50.0)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--storage-every", type=int, default=0, help="0: every save goes to storage")
    parser.add_argument(
        "--wait", action="store_true", help="wait for a slot and until a save is sealed: none is skipped"
    )
    parser.add_argument("--throttle", default="", help="a control group to be in")
    parser.add_argument("--told", required=True, help="where the lines go")
    args = parser.parse_args(argv)
    if args.throttle:
        with open(os.path.join(args.throttle, "cgroup.procs"), "w", encoding="ascii") as group:
            group.write(str(os.getpid()))
    out = os.open(args.told, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write_event(**values: object) -> None:
        os.write(out, json.dumps(values).encode() + b"\n")

    warnings.simplefilter("ignore", RuntimeWarning)
    torch.set_num_threads(1)
    if args.world > 1:
        dist.init_process_group("gloo", init_method=f"file://{args.store}", rank=args.rank, world_size=args.world)
    # `extra` is each rank's own, so each has as much to save as it holds.
    weights = [torch.full((int(args.mb * 1e6 / 4 / 8),), -1.0) for _ in range(8)]
    state = State(extra={"weights": weights})
    manager = Manager(
        args.root, every=args.every, storage_every=args.storage_every or None, keep=None, compare=None, max_lost=None
    )
    cadences = Cadences(args.every, args.storage_every or None, Ranks(alone=True))
    got = manager.restore(state)
    wrong = sum(int((part != float(got.next_step - 1)).sum()) for part in weights)
    write_event(what="restored", next=got.next_step, tier=tier_of_start(got), wrong=wrong)
    handles: list[Handle] = []
    for step in range(got.next_step, got.next_step + args.steps):
        if args.world > 1:
            dist.barrier()
        write_event(what="begins", step=step)
        time.sleep(args.step_ms / 1000.0)
        for part in weights:
            part.fill_(float(step))
        if args.wait:
            handle = save_if_due(manager, cadences, state, step)
        else:
            handle = manager.step(step, state)
        if handle is not None:
            if args.wait:
                handle.wait("sealed")
            handles.append(handle)
            write_event(what="saved", step=step, tier=handle.tier, stall_ms=handle.stall_ms, skipped=handle.final)
    closed = manager.close()
    ends = [handle.state for handle in handles]
    write_event(
        what="closed", safe=closed, **{end: ends.count(end) for end in ("durable", "skipped", "dropped", "failed")}
    )


if __name__ == "__main__":
    main()
