"""A loop with `Manager(save_on_signal=True)` as a rank of a Slurm step, or of torchrun in one.

    warned_trainer.py STEPS [SECONDS]

Says as JSON where it began, and how it ended: the step that was saved. SECONDS: it does not end for so long once it has
saved, so that what comes late comes before its end.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from hyperpod_kit.checkpoint import Manager, State


def say(**fields: object) -> None:
    os.write(1, (json.dumps(fields) + "\n").encode())


def main() -> None:
    last, lingers = int(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 0.0
    env, root = os.environ, Path(os.environ["HPK_CHECKPOINT_ROOT"])
    rank, ranks = (
        int(env.get(ours, env.get(slurms, "")))
        for ours, slurms in (("RANK", "SLURM_PROCID"), ("WORLD_SIZE", "SLURM_NTASKS"))
    )
    meeting = root.parent / f"meeting-{env['HPK_ATTEMPT']}"
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=ranks)
    weights = torch.zeros(1 << 20)
    state = State(extra={"weights": weights})
    manager = Manager(root, every=10**6, save_on_signal=True)
    found = manager.restore(state)
    weights = state.extra["weights"]
    assert bool((weights == found.next_step - 1 if found.next_step else weights == 0).all())
    say(rank=rank, begins=found.next_step, tier=getattr(found, "tier", ""))
    step = found.next_step
    try:
        for step in range(found.next_step, last + 1):
            time.sleep(0.05)
            weights.fill_(float(step))
            manager.step(step, state)
    except SystemExit as ended:
        time.sleep(lingers)
        say(rank=rank, code=ended.code, saved=step)
        raise
    manager.close()
    say(rank=rank, finished=last)


if __name__ == "__main__":
    main()
