"""A training program of somebody else's: Hugging Face's directory layout, an option to resume, no word of hyperpod-kit.

Its weights are a zip archive as torch.save makes one, so that it needs nothing but a system Python.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import zipfile
from pathlib import Path


def save(output: Path, step: int) -> None:
    place = output / f"checkpoint-{step}"
    place.mkdir()
    with zipfile.ZipFile(place / "pytorch_model.bin", "w") as archive:
        archive.writestr("archive/data/0", f"weights of step {step}" * 100)
    (place / "trainer_state.json").write_text(json.dumps({"global_step": step}))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output_dir", type=Path, required=True)
    parser.add_argument("--resume_from_checkpoint", type=Path)
    args = parser.parse_args()
    rank, once = int(os.environ["SLURM_PROCID"]), args.output_dir.parent / "crashed"
    begin = (
        json.loads((args.resume_from_checkpoint / "trainer_state.json").read_text())["global_step"]
        if args.resume_from_checkpoint
        else 0
    )
    print(f"third party: rank {rank} begins at {begin}", flush=True)
    for step in range(begin + 1, 31):
        time.sleep(0.02)
        if rank == 0 and step % 10 == 0:
            save(args.output_dir, step)
        if rank == 0 and step == 25 and not once.exists():
            once.touch()
            with open(args.output_dir / "checkpoint-20" / "pytorch_model.bin", "r+b") as file:
                file.truncate(900)  # the newest was torn when the machine went down
            return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
