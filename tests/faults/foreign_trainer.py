"""A trainer of another framework: Hugging Face's directories, no word of hyperpod-kit but the checkpoint it is told of.

    foreign_trainer.py LIB --steps N [--every K] [--pause S]

Its weights are the chain of digests of trainer.py; rank 0 saves them, and no rank waits for another: who outlives a
machine that died goes on. System Python only: it runs on the nodes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time
import zipfile
from pathlib import Path
from typing import Any


def say(**fields: Any) -> None:
    launch = f"{os.environ['SLURM_STEP_ID']}.{os.environ.get('SLURM_STEP_LAUNCHER_PORT', '')}"
    line = {"t": round(time.time(), 3), "attempt": os.environ["HPK_ATTEMPT"], "launch": launch, **fields}
    os.write(1, (json.dumps(line) + "\n").encode())


def save(root: Path, step: int, state: bytes) -> None:
    place = root / f"checkpoint-{step}"
    place.mkdir()  # a trainer that begins anew over its own files ends here
    with zipfile.ZipFile(place / "pytorch_model.bin", "w") as archive:
        archive.writestr("archive/data/0", state.hex())
    (place / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    say(saved=place.name)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("lib")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--every", type=int, default=20)
    parser.add_argument("--pause", type=float, default=0.1)
    args = parser.parse_args()
    root, told = Path(os.environ["HPK_CHECKPOINT_ROOT"]), os.environ["HPK_RESUME_FROM"]
    rank = int(os.environ["SLURM_PROCID"])
    first, state = 0, hashlib.sha256(b"weights at step 0 of rank 0").digest()
    if told != "none":
        with zipfile.ZipFile(root / told / "pytorch_model.bin") as archive:
            state = bytes.fromhex(archive.read("archive/data/0").decode())
        first = json.loads((root / told / "trainer_state.json").read_text())["global_step"]
    say(rank=rank, resumed=told, at=first, node=os.environ["SLURMD_NODENAME"])
    for step in range(first + 1, args.steps + 1):
        time.sleep(args.pause)
        state = hashlib.sha256(state + step.to_bytes(8, "big")).digest()
        if rank == 0:
            say(step=step)
        if rank == 0 and step % args.every == 0:
            save(root, step, state)
    if rank == 0:
        say(rank=0, weights=state.hex())
    return 0


if __name__ == "__main__":
    sys.exit(main())
