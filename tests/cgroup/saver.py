"""A rank that trains nothing and saves as fast as it may, and says what it has captured.

    saver.py ROOT EVENTS RENDEZVOUS VALUES

Each rank has the state that the file VALUES is, mapped, so that several large ones find room on one host, and changes
its first page at each step. A line in EVENTS.<rank> for each save whose copy is complete, before anything else happens.
SIGUSR2: take memory without end.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import time
from typing import Any


def hog(*_: Any) -> None:
    taken = []
    while True:
        taken.append(bytearray(b"x" * (8 << 20)))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("root")
    parser.add_argument("events")
    parser.add_argument("rendezvous")
    parser.add_argument("values")
    args = parser.parse_args()
    rank, world = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
    events = os.open(f"{args.events}.{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def say(**what: Any) -> None:
        os.write(events, json.dumps(what).encode() + b"\n")

    import torch

    from hyperpod_kit.checkpoint import Manager, State
    from hyperpod_kit.checkpoint.repository.policy import Latest

    torch.set_num_threads(1)
    if world > 1:
        torch.distributed.init_process_group(
            "gloo",
            init_method=f"file://{args.rendezvous}.{os.environ.get('HPK_ATTEMPT', '')}",
            rank=rank,
            world_size=world,
        )
    values = torch.from_file(args.values, shared=False, size=os.stat(args.values).st_size // 4, dtype=torch.float32)
    extra = {f"values-{rank}": values}
    state = State(extra=extra, rng=False)
    manager = Manager(args.root, keep=Latest(6))  # it saves until it is ended, and a test may wait long
    restored = manager.restore(state)
    signal.signal(signal.SIGUSR2, hog)
    say(
        pid=os.getpid(),
        agent=manager._agent.pid,
        restored=getattr(restored, "step", -1),
        tier=getattr(restored, "tier", ""),
    )
    for step in itertools.count(restored.next_step):
        values[:1024].fill_(float(step))
        handle = manager.save(step, state, on_busy="wait")
        if handle.state in ("skipped", "dropped", "failed"):
            say(lost=step, why=handle.reason)
        else:
            say(captured=step, t=time.time())


if __name__ == "__main__":
    main()
