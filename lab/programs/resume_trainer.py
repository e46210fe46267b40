"""What lab/programs/resume.py trains: large weights, sharded over the ranks; rank 1 kills itself after step 4, once.

A save is made at step 2 alone. Each rank says when it has begun, restored and begun a step, and what its process read
while it restored (rchar of /proc/PID/io: bytes that came through read(2), from the page cache too).
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from hyperpod_kit.checkpoint import Manager, State

SAVED, KILLED, LAST = 2, 4, 6


def print_event(**fields: object) -> None:
    os.write(1, ("bench: " + json.dumps({"t": time.time(), **fields}) + "\n").encode())


def bytes_read_by(pid: int) -> int:
    """Return the bytes that a process has read through read(2)."""
    fields = Path(f"/proc/{pid}/io").read_text().split()
    return int(fields[fields.index("rchar:") + 1])


def process_age() -> float:
    """Seconds since this process was started."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return float(Path("/proc/uptime").read_text().split()[0]) - ticks / os.sysconf("SC_CLK_TCK")


def main() -> None:
    root, once, gigabytes = Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])
    rank, world = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"file://{root}.{os.environ['HPK_ATTEMPT']}",
        rank=rank,
        world_size=world,
    )
    mesh = init_device_mesh("cpu", (world,))
    pieces = [
        DTensor.from_local(torch.ones(1 << 14, 1 << 12), mesh, [Shard(0)]) for _ in range(max(1, int(gigabytes * 4)))
    ]
    state = State(torch.nn.ParameterList(pieces), rng=False)  # 256 MiB of each are this rank's
    print_event(what="built", rank=rank, start_up=process_age())
    manager = Manager(root)
    before = bytes_read_by(os.getpid())
    begin = time.monotonic()
    got = manager.restore(state)
    print_event(
        what="restored",
        rank=rank,
        next=got.next_step,
        tier=getattr(got, "tier", ""),
        seconds=time.monotonic() - begin,
        read=bytes_read_by(os.getpid()) - before,
    )
    for step in range(got.next_step, LAST + 1):
        torch.distributed.barrier()
        print_event(what="step", rank=rank, step=step)
        if step == SAVED:
            handle = manager.save(step, state)
            assert handle.wait("durable", 600), handle.reason
        if step == KILLED and rank == 1 and not once.exists():
            once.write_text("")
            print_event(what="killed", rank=rank)
            os.kill(os.getpid(), signal.SIGKILL)
    manager.close()


if __name__ == "__main__":
    main()
