"""Ranks that are killed at random and started again, in another number and with other workers: the torture of loaders.

    python -m tests.unit.data.killed_ranks --kills 300

Every rank is a process with a real ElasticLoader (and its worker processes), killed with SIGKILL at any moment. The
parent plays the collective of a step and the commit of a checkpoint: it lets all ranks take a step, and keeps their
position every so many steps. Each restart has another number of ranks and workers. What the ranks noted is judged by
the ledger; what was committed is compared with a run that nobody disturbed.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import threading
import time
import warnings
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import torch

from hyperpod_kit.data import ElasticLoader, IndexedDataset
from hyperpod_kit.data.index.build import build
from hyperpod_kit.data.ledger_check import LedgerReport, check

FORK = multiprocessing.get_context("fork")
RANKS = (1, 2, 3, 4, 8)
WORKERS = (0, 1, 4)
GROUP = 48
"""Samples of a step, whatever the number of ranks: 48 is divided by each of them."""


class Torture(NamedTuple):
    """What came of it."""

    kills: int
    restarts: int
    steps: int
    report: LedgerReport
    consumed: dict[int, list[Any]]
    """Position -> what all ranks received at the step there, by position, without what was rolled back."""


def corpus(folder: Path, samples: int, files: int = 5) -> IndexedDataset:
    """Numbered samples in several files of different sizes."""
    folder.mkdir(parents=True)
    bounds = [samples * n * n // (files * files) for n in range(files + 1)]
    for number in range(files):
        lines = (json.dumps({"n": n, "text": "x" * (n % 37)}) + "\n" for n in range(bounds[number], bounds[number + 1]))
        (folder / f"{number}.jsonl").write_text("".join(lines))
    return IndexedDataset(build([str(folder)]).index, transform=number_of)


def number_of(sample: dict[str, Any]) -> int:
    return int(sample["n"])


def _rank(made: Any, how: dict[str, Any], workers: int, state: Any, orders: Connection) -> None:
    """One rank: at each order it takes a batch and says what it was; told to, it says its position."""
    os.setpgid(0, 0)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(1)
    # No tensors: their shared memory is torch's own business, and this is about which samples come.
    loader = ElasticLoader(made, num_workers=workers, collate_fn=list, prefetch_factor=3 if workers else None, **how)
    if state is not None:
        loader.load_state_dict(state)
    batches = iter(loader)
    while True:
        orders.recv()
        try:
            batch = next(batches)
        except StopIteration:
            batches = iter(loader)
            batch = next(batches)
        orders.send((batch, loader.fillers, loader.state_dict()))


class World:
    """The ranks of one launch."""

    def __init__(self, made: Any, how: dict[str, Any], ranks: int, workers: int, state: Any, launch: str) -> None:
        self.ends: list[Connection] = []
        self.processes = []
        for rank in range(ranks):
            mine, its = FORK.Pipe()
            options = {**how, "batch_size": GROUP // ranks, "rank": rank, "ranks": ranks, "launch": launch}
            process = FORK.Process(target=_rank, args=(made, options, workers, state, its))
            process.start()
            its.close()
            self.ends.append(mine)
            self.processes.append(process)

    def step(self) -> list[Any] | None:
        """What each rank received, None when one is dead."""
        try:
            for end in self.ends:
                end.send("step")
            for end, process in zip(self.ends, self.processes, strict=True):
                # Its workers hold the other end of the pipe for some seconds more, so its end alone says nothing.
                while not end.poll(0.01):
                    if not process.is_alive() and not end.poll():
                        return None
            return [end.recv() for end in self.ends]
        except (EOFError, ConnectionError):
            return None

    def kill(self) -> None:
        """SIGKILL to every rank; its workers see that it is gone, as after a real one."""
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join()
        for end in self.ends:
            end.close()


def torture(made: Any, folder: Path, *, kills: int, epochs: int, seed: int, **how: Any) -> Torture:
    """Train `epochs` epochs under about `kills` kills, spread over all of it."""
    dice = random.Random(seed)
    how = {"ledger": str(folder / "ledger"), **how}
    committed: dict[str, Any] | None = None
    consumed: dict[int, list[Any]] = {}
    done = restarts = steps = 0
    probe = ElasticLoader(made, GROUP, **{**how, "ledger": None, "rank": 0, "ranks": 1})
    end = epochs * probe.sample_order.samples
    while committed is None or committed["position"] < end:
        ranks, workers = dice.choice(RANKS), dice.choice(WORKERS)
        world = World(made, how, ranks, workers, committed, f"launch-{restarts}")
        restarts += 1
        position = committed["position"] if committed else 0
        consumed = {at: batch for at, batch in consumed.items() if at < position}
        try:
            every = dice.randint(1, 3)
            between = (end - position) // GROUP // max(1, kills - done)
            due = dice.randint(0, between)
            since = 0
            while position < end:
                if done < kills and since == due:
                    victim = dice.choice(world.processes)
                    # At any moment of a step: while the rank starts, reads, writes its line or has just answered.
                    threading.Timer(dice.uniform(0.0, 0.01), victim.kill).start()
                    done += 1
                answers = world.step()
                if answers is None:
                    break
                steps += 1
                states = [state for _, _, state in answers]
                assert all(state == states[0] for state in states), "all ranks are at one position"
                consumed[position] = in_order([(batch, fillers) for batch, fillers, _ in answers])
                position = states[0]["position"]
                since += 1
                if since % every == 0 or position >= end:
                    committed = states[0]
        finally:
            world.kill()
    return Torture(done, restarts, steps, check(folder / "ledger"), consumed)


def in_order(answers: list[tuple[list[Any], int]]) -> list[Any]:
    """The samples of a step by their positions, without fillers: rank r has every so many-th from r on."""
    real = [batch[: len(batch) - fillers] for batch, fillers in answers]
    return [real[n % len(real)][n // len(real)] for n in range(sum(map(len, real)))]


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--samples", type=int, default=20_000)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    warnings.simplefilter("ignore")  # of torch: more workers than cores
    with tempfile.TemporaryDirectory() as place:
        made = corpus(Path(place, "corpus"), args.samples)
        begun = time.monotonic()
        found = torture(made, Path(place), kills=args.kills, epochs=args.epochs, seed=args.seed)
    for one in found.report.epochs:
        print(
            f"epoch {one.epoch}: {one.once} of {args.samples} once, {len(one.repeated)} more, complete={one.complete}"
        )
    print(
        f"{found.kills} kills, {found.restarts} launches, {found.steps} steps, {found.report.rolled_back} rolled back, "
        f"{time.monotonic() - begun:.0f} s: {'good' if found.report.good else found.report.problems}"
    )
    return 0 if found.report.good and found.kills >= args.kills * 9 // 10 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
