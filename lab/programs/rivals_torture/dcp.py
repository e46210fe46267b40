"""torch.distributed.checkpoint under flips, kills and a full disk.

    python lab/programs/rivals_torture/dcp.py [--flips 1000] [--kills 200] [--seed 1]

DCP has no notion of the newest checkpoint. As TorchTitan does, the newest is the highest step whose directory has a
`.metadata`; there is no falling back, because whoever loads cannot know that the bytes are wrong.
"""

from __future__ import annotations

import argparse
import random
import shutil
import tempfile
import threading
import time
import warnings
from collections import Counter
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from cases import (
    OUTCOME_LABELS,
    RAISED,
    RIGHT,
    SCRATCH,
    SIZES,
    WRONG,
    count_flip_outcomes,
    is_state_of_step,
    limit_file_size,
    print_report,
    run_and_kill_after,
    run_in_child,
)
from cases import state_of_step as state_of


def save_step(folder: Path, step: int, threads: int = 1) -> None:
    dcp.save(state_of(step), storage_writer=dcp.FileSystemWriter(str(folder), thread_count=threads))


def newest_checkpoint(root: Path) -> Path | None:
    return max((path.parent for path in root.glob("*/.metadata")), key=lambda path: int(path.name), default=None)


def load_newest(root: Path, allowed: tuple[int, ...]) -> int:
    """Load the newest; RIGHT when it is one of the allowed steps bit by bit."""
    folder = newest_checkpoint(root)
    if folder is None:
        return SCRATCH
    loaded = {name: torch.zeros(size) for name, size in SIZES.items()}
    dcp.load(loaded, checkpoint_id=str(folder))
    if any(is_state_of_step(loaded, step) for step in allowed):
        return RIGHT
    return WRONG


def count_kill_outcomes(top: Path, count: int, dice: random.Random, *, again: bool) -> Counter[str]:
    """SIGKILL at a random moment of a save into a new directory, or `again` into the one that is there."""
    out: Counter[str] = Counter()
    while sum(out.values()) < count:
        root = top / "kills"
        shutil.rmtree(root, ignore_errors=True)
        save_step(root / "10", 10)
        begin = time.monotonic()
        save_step(root / "9", 9)
        took = time.monotonic() - begin
        target = root / "11"
        if again:
            target = root / "10"
        if run_and_kill_after(dice.uniform(0.0, 2.0 * took), lambda target=target: save_step(target, 11)):
            out[OUTCOME_LABELS[run_in_child(lambda root=root: load_newest(root, (10, 11)))]] += 1
    return out


def count_full_disk_outcomes(top: Path, dice: random.Random, count: int, threads: int) -> Counter[str]:
    """Writes fail beyond a random size of a file; the previous step is there."""
    out: Counter[str] = Counter()
    for _ in range(count):
        root = top / "full"
        shutil.rmtree(root, ignore_errors=True)
        save_step(root / "10", 10)
        limit = dice.randrange(1, 4 * max(max(SIZES.values()), sum(SIZES.values()) // threads))

        def limited(root: Path = root, limit: int = limit) -> int:
            threading.excepthook = lambda _: None
            limit_file_size(limit)
            save_step(root / "11", 11, threads)
            return RIGHT

        save_outcome = run_in_child(limited)
        got = run_in_child(lambda root=root: load_newest(root, (10, 11)))
        ending = "said success"
        if save_outcome == RAISED:
            ending = "raised"
        out[f"save {ending}; then the newest gives {OUTCOME_LABELS[got]}"] += 1
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flips", type=int, default=1000)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dice = random.Random(args.seed)
    with tempfile.TemporaryDirectory(prefix="dcp-torture-") as folder:
        top = Path(folder)
        save_step(top / "flips/10", 10)
        files = sorted(path for path in (top / "flips/10").iterdir())
        results = {
            "one byte changed": count_flip_outcomes(files, args.flips, dice, lambda: load_newest(top / "flips", (10,))),
            "killed while saving a new step": count_kill_outcomes(top, args.kills, dice, again=False),
            "killed while saving a step again": count_kill_outcomes(top, args.kills, dice, again=True),
            "disk full, 1 thread": count_full_disk_outcomes(top, dice, args.kills // 4, 1),
            "disk full, 8 threads": count_full_disk_outcomes(top, dice, args.kills // 4, 8),
        }
    print_report("torch DCP", torch.__version__, args.seed, results)


if __name__ == "__main__":
    main()
