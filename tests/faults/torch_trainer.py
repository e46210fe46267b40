"""A trainer with torch and this project's Manager: saves for memory, copied to partners' memory.

    torch_trainer.py LIB --steps N --stored STEP --hold STEP

A save every 5 steps: for storage up to the step `stored`, for memory from then on. From scratch it stops training after
the save of the step `hold`, says so and waits to be killed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Literal

EVERY = 5


def say(**fields: Any) -> None:
    """One line in one write: lines of ranks must not cut into each other."""
    os.write(1, (json.dumps({"t": round(time.time(), 3), **fields}) + "\n").encode())


class Training:
    """A model and an optimizer that are alike on all ranks, and a tensor and random numbers of the rank's own."""

    def __init__(self, rank: int) -> None:
        import torch

        self._torch = torch
        torch.manual_seed(1)
        self.model = torch.nn.Linear(300, 300)
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.extra: Dict[str, Any] = {"mine": torch.zeros(100_000)}
        torch.manual_seed(100 + rank)

    def step(self, step: int) -> None:
        torch = self._torch
        alike = torch.Generator().manual_seed(step)
        self.optimizer.zero_grad()
        self.model(torch.rand(8, 300, generator=alike)).square().sum().backward()
        self.optimizer.step()
        self.extra["mine"] += torch.rand(100_000)

    def digest(self) -> str:
        """Of every byte that training has made."""
        found = hashlib.sha256()
        moments = [value for state in self.optimizer.state.values() for value in state.values()]
        for tensor in (*self.model.parameters(), *moments, self.extra["mine"]):
            found.update(tensor.detach().numpy().tobytes())
        return found.hexdigest()


def undisturbed(ranks: int, steps: int) -> List[str]:
    """What a run that nobody disturbed ends with, by rank."""
    import torch

    torch.set_num_threads(1)
    found = []
    for rank in range(ranks):
        training = Training(rank)
        for step in range(1, steps + 1):
            training.step(step)
        found.append(training.digest())
    return found


def meet(rank: int, ranks: int, place: Path) -> None:
    """All ranks of this launch; the others find rank 0 through a file."""
    import torch.distributed as dist

    place.parent.mkdir(exist_ok=True)
    if rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, ranks, is_master=True, wait_for_workers=False)
        place.with_suffix(".new").write_text(str(store.port))
        place.with_suffix(".new").rename(place)
    else:
        while not place.exists():
            time.sleep(0.02)
        store = dist.TCPStore("127.0.0.1", int(place.read_text()), ranks, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("lib")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--stored", type=int, required=True)
    parser.add_argument("--hold", type=int, required=True)
    args = parser.parse_args()
    sys.path.insert(0, args.lib)
    attempt, rank, count = os.environ["HPK_ATTEMPT"], int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
    say(attempt=attempt, rank=rank, at=-1, node=os.environ["SLURMD_NODENAME"])
    import torch

    from hyperpod_kit.checkpoint import Manager, Restored, State
    from hyperpod_kit.slurm import environment

    launch = environment.step_launch_id_with_srun_port(os.environ)
    torch.set_num_threads(1)
    meet(rank, count, Path(os.environ["HPK_STATE"], "meet", f"{attempt}.{launch}"))
    training = Training(rank)
    state = State(training.model, training.optimizer, extra=training.extra)
    manager = Manager(os.environ["HPK_CHECKPOINT_ROOT"], slots=3, partners=True)
    got = manager.restore(state)
    fresh = not isinstance(got, Restored)
    restored_step = got.step if isinstance(got, Restored) else 0
    say(
        attempt=attempt,
        rank=rank,
        at=restored_step,
        tier=getattr(got, "tier", ""),
        rejected=[why for _, why in got.rejected],
        node=os.environ["SLURMD_NODENAME"],
    )
    for step in range(restored_step + 1, args.steps + 1):
        training.step(step)
        torch.distributed.barrier()
        if rank == 0:
            say(attempt=attempt, step=step, launch=launch)
        if step % EVERY == 0:
            tier: Literal["memory", "storage"] = "storage" if step <= args.stored else "memory"
            handle = manager.save(step, state, on_busy="wait", tier=tier)
            assert handle.wait(timeout=120), handle
            torch.distributed.barrier()
            if rank == 0:
                say(attempt=attempt, saved=step, tier=tier, launch=launch)
        if fresh and step == args.hold:
            say(attempt=attempt, rank=rank, held=step)
            time.sleep(3600)
    say(attempt=attempt, rank=rank, weights=training.digest())
    assert manager.close(), "not all was brought to storage"


if __name__ == "__main__":
    main()
