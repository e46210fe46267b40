"""The proof of exactly once, whole: `make data-proof`.

    python -m tests.unit.data.proof --kills 300

1. Ranks with real loaders under random SIGKILLs, in other numbers and with other workers at each start, shuffled, over
   two epochs: the ledger says that each sample came exactly once an epoch.
2. The same with documents that are filtered and packed: the tokens are byte for byte those of an undisturbed run.
3. examples/data/train.py with its checkpoints, under SIGKILLs at any moment, with other workers at each start: the
   losses of all steps are bit for bit those of an undisturbed run, on one process and on two with DDP.

Its tests in the suite are the same with fewer kills.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path

from tests.support import warm
from tests.support.ports import free_port
from tests.unit.data.killed_ranks import Torture, corpus, tokens, torture, windows

PROGRAM = Path(__file__).parents[3] / "examples" / "data" / "train.py"
WORKERS = (0, 1, 4)


class TrainingRun:
    """The example program over a small corpus in `place`: started, killed, started again."""

    def __init__(self, place: Path, processes: int, lines: int) -> None:
        self.place = place
        self.processes = processes
        self.losses: dict[int, str] = {}
        self.kills = 0
        (place / "corpus").mkdir(parents=True)
        (place / "shm").mkdir()
        for part in range(3):
            text = (f"document {part} {n}: what it says\n" for n in range(lines // 3))
            (place / "corpus" / f"{part}.txt").write_text("".join(text))

    def start(self, workers: int, kill_after: tuple[int, float] | None) -> bool:
        """Run until the end, or until so many steps more have been taken and so many seconds have passed: then SIGKILL
        to one process, and to the others as Slurm does. Whether it came to its end."""
        port = str(free_port())
        ranks = [self._rank(rank, workers, port) for rank in range(self.processes)]
        for follower in ranks[1:]:
            threading.Thread(target=_drain, args=(follower,), daemon=True).start()
        steps = 0
        for line in ranks[0].stdout:
            for step, loss in re.findall(r"step (\d+) loss (\S+)", line):
                self.losses[int(step)] = loss
                steps += 1
            if kill_after is not None and steps >= kill_after[0]:
                victim = ranks[self.kills % len(ranks)]
                threading.Timer(kill_after[1], _kill, (victim, ranks)).start()
                self.kills += 1
                kill_after = None
        codes = [rank.wait() for rank in ranks]
        if any(codes) and -signal.SIGKILL not in codes:
            raise AssertionError(f"ranks ended with {codes}")
        return not any(codes)

    def _rank(self, rank: int, workers: int, port: str) -> warm.Program:
        words = [str(self.place / "corpus"), "--root", str(self.place / "run"), "--epochs", "2"]
        world = {"RANK": str(rank), "WORLD_SIZE": str(self.processes), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        return warm.Program(
            [str(PROGRAM), *words, "--workers", str(workers)],
            env={
                **os.environ,
                "HPK_SHM_DIR": str(self.place / "shm"),
                "OMP_NUM_THREADS": "1",
                "PYTHONPATH": str(PROGRAM.parents[2]),
                "PYTHONWARNINGS": "ignore",
                **(world if self.processes > 1 else {}),
            },
        )


def _kill(victim: warm.Program, ranks: list[warm.Program]) -> None:
    """One dies; who waits for it then is ended, as srun --kill-on-bad-exit does."""
    victim.kill()
    victim.wait()
    for rank in ranks:
        try:
            rank.wait(2)
        except subprocess.TimeoutExpired:
            rank.kill()


def _drain(process: warm.Program) -> None:
    for _ in process.stdout:
        pass


def losses_under_kills(place: Path, processes: int, *, kills: int, lines: int, seed: int) -> tuple[TrainingRun, bool]:
    """The killed run, and whether its losses are those of a calm one."""
    dice = random.Random(seed)
    calm, killed = (TrainingRun(place / name, processes, lines) for name in ("calm", "killed"))
    if not calm.start(1, None):
        raise AssertionError("the undisturbed run failed")
    while not killed.start(
        dice.choice(WORKERS), _when(dice, len(calm.losses) // kills) if killed.kills < kills else None
    ):
        pass
    return killed, killed.losses == calm.losses


def _when(dice: random.Random, steps: int) -> tuple[int, float]:
    """After some of these steps, and a moment in between; now and then before the first one."""
    return (0, dice.uniform(0.0, 3.0)) if dice.random() < 0.1 else (dice.randint(1, steps), dice.uniform(0.0, 0.02))


def told(what: str, found: Torture, begun: float) -> bool:
    """Say what came of it. Whether it is good."""
    for one in found.report.epochs:
        print(
            f"{what}: epoch {one.epoch}: {one.once} of {found.report.samples} once, {len(one.repeated)} more than once"
        )
    print(
        f"{what}: {found.kills} kills, {found.restarts} launches, {found.steps} steps, {found.report.rolled_back} "
        f"rolled back, {time.monotonic() - begun:.0f} s: "
        f"{'good' if found.report.is_exactly_once else found.report.problems}",
        flush=True,
    )
    return found.report.is_exactly_once


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=300, help="of ranks, for samples and for packed windows (300)")
    parser.add_argument("--loss-kills", type=int, default=20, help="of the example, on one process and on two (20)")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    warnings.simplefilter("ignore")  # of torch: more workers than cores
    count, good = args.kills * 120, True
    with tempfile.TemporaryDirectory() as made:
        place = Path(made)
        begun = time.monotonic()
        found = torture(corpus(place / "corpus", count), place / "samples", kills=args.kills, epochs=2, seed=args.seed)
        good &= told("samples", found, begun) and found.kills >= args.kills

        packed = windows(place / "documents", count * 2 // 3, 8)
        begun = time.monotonic()
        calm = torture(packed, place / "calm", kills=0, epochs=2, seed=args.seed, order=packed.windows)
        found = torture(packed, place / "killed", kills=args.kills, epochs=2, seed=args.seed + 1, order=packed.windows)
        good &= told("packed windows", found, begun) and found.kills >= args.kills
        same = tokens(found) == tokens(calm)
        size = sum(map(len, tokens(found).values()))
        print(f"packed windows: {size} bytes of tokens, equal to an undisturbed run's: {same}", flush=True)
        good &= same

        for processes in (1, 2):
            begun = time.monotonic()
            run, same = losses_under_kills(
                place / f"losses-{processes}", processes, kills=args.loss_kills, lines=6000, seed=args.seed
            )
            print(
                f"losses on {processes} processes: {run.kills} kills, {len(run.losses)} steps, bit-equal to an "
                f"undisturbed run's: {same}, {time.monotonic() - begun:.0f} s",
                flush=True,
            )
            good &= same and run.kills >= args.loss_kills
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
