"""A rank that has captured its state in shared memory and goes on, as far as anybody can see.

    capturer.py LIB ROOT

LIB holds the package hyperpod_kit. System Python only: it runs on the nodes.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Tuple


def capture(
    folder: str, root: str, *, job: str, owner: Tuple[int, int], rank: int = 0, world: int = 1, seq: int = 1
) -> None:
    """What the trainer `owner` leaves in shared memory, of step 10 * seq."""
    from hyperpod_kit.checkpoint.agent.shm import control_page, shm_slots
    from hyperpod_kit.checkpoint.repository.format import digest
    from hyperpod_kit.checkpoint.repository.format.shard import TensorSpec, lay_out
    from hyperpod_kit.checkpoint.repository.records import identity

    who = identity.ensure_run_identity(root)
    layout = lay_out(
        [TensorSpec(f"w{rank}", "F32", (3000,))],
        rank=rank,
        world=world,
        run_id=who.run_id,
        plan="blake2b:p",
        algorithm="blake2b",
        chunk=digest.CHUNK,
    )
    name = shm_slots.SlotName(os.getuid(), shm_slots.run_hash(who.run_id), rank, 0)
    slot = shm_slots.create(folder, name, layout.size)
    page = control_page.Page(
        origin=control_page.CaptureOrigin(
            rank=rank,
            world=world,
            incarnation="abc123",
            run=who.run,
            run_id=who.run_id,
            root=root,
            job={"slurm_job_id": job},
            owner=owner,
        ),
        epoch=1,
        seq=seq,
        step=10 * seq,
        shard=control_page.ShardFacts(
            digest="blake2b",
            chunk=digest.CHUNK,
            size=layout.size,
            layout=layout.fingerprint,
            plan="blake2b:p",
            tensors=1,
            plan_tensors=world,
            extra_size=2,
            extra_root=digest.small_object_digest(b"{}"),
        ),
    )
    slot.write_page(page.transition(control_page.SlotState.WRITING))
    head = layout.header(1, seq, 10 * seq)
    slot.image[: len(head)] = head
    slot.write_extra(b"{}")
    slot.transition(control_page.SlotState.CAPTURED)
    slot.close()


def main() -> None:
    library, root = sys.argv[1:]
    sys.path.insert(0, library)
    from hyperpod_kit.checkpoint.agent.shm import shm_paths
    from hyperpod_kit.system import process

    rank, world = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
    own = process.this_process()
    owner = (own.pid, own.started)
    capture(
        shm_paths.ensure_user_directory(), root, job=os.environ["SLURM_JOB_ID"], owner=owner, rank=rank, world=world
    )
    print(f"captured {rank}", flush=True)
    time.sleep(600)


if __name__ == "__main__":
    main()
