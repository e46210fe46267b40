"""Ranks that are killed at random and started again, in another number and with other workers: the torture of loaders.

Every rank is a process with a real ElasticLoader (and its worker processes), killed with SIGKILL at any moment. The
parent plays the collective of a step and the commit of a checkpoint: it lets all ranks take a step, and keeps their
position every so many steps. Each restart has another number of ranks and workers. What the ranks noted is judged by
the ledger; what was committed is compared with a run that nobody disturbed.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import threading
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import torch

from hyperpod_kit.data import ElasticLoader, IndexedDataset, PackedDataset, ShuffledOrder, lengths_of
from hyperpod_kit.data.index.build import build_index
from hyperpod_kit.data.loading.sample_log_check import SampleLogReport, check_sample_log

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
    report: SampleLogReport
    consumed: dict[int, list[Any]]
    """Position -> what all ranks received at the step there, by position, without what was rolled back."""


def corpus(folder: Path, samples: int, files: int = 5) -> IndexedDataset:
    """Numbered samples in several files of different sizes."""
    folder.mkdir(parents=True)
    bounds = [samples * n * n // (files * files) for n in range(files + 1)]
    for number in range(files):
        lines = (json.dumps({"n": n, "text": "x" * (n % 37)}) + "\n" for n in range(bounds[number], bounds[number + 1]))
        (folder / f"{number}.jsonl").write_text("".join(lines))
    return IndexedDataset(build_index([str(folder)]).index, transform=number_of)


def number_of(sample: dict[str, Any]) -> int:
    return int(sample["n"])


def encode(text: str) -> list[int]:
    """Bytes and an end; documents with a q are left out."""
    return [] if "q" in text else [*text.encode(), 0]


def documents(folder: Path, count: int) -> IndexedDataset:
    """Lines of text of many lengths, some of which `encode` leaves out."""
    folder.mkdir(parents=True)
    lines = (f"{n} " + "abcdefghijklmnopq"[: n * 7 % 18] for n in range(count))
    (folder / "a.txt").write_text("".join(line + "\n" for line in lines))
    return IndexedDataset(build_index([str(folder)], str(folder) + ".index").index)


def windows(folder: Path, count: int, window: int, seed: int = 4) -> PackedDataset:
    """Documents, filtered and packed into windows of so many tokens."""
    data = documents(folder, count)
    order = ShuffledOrder(count, seed, block=16, lanes=6)
    return PackedDataset(data, encode, lengths_of(data, encode, "bytes"), window=window, order=order)


def tokens(found: Torture) -> dict[int, bytes]:
    """Position -> the bytes of what all ranks received at the step there."""
    return {at: b"".join(window.tobytes() for window in made) for at, made in found.consumed.items()}


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
            due = dice.randint(0, max(0, between - 2))  # while a kill is on its way a step is taken
            since = 0
            while position < end:
                killer = None
                if done < kills and since == due:
                    victim = dice.choice(world.processes)
                    # At any moment of a step: while the rank starts, reads, writes its line or has just answered.
                    killer = threading.Timer(dice.uniform(0.0, 0.01), victim.kill)
                    killer.start()
                    done += 1
                answers = world.step()
                if killer is not None:
                    killer.join()  # however late: the kills are as many as the steps have room for
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
    return Torture(done, restarts, steps, check_sample_log(folder / "ledger"), consumed)


def in_order(answers: list[tuple[list[Any], int]]) -> list[Any]:
    """The samples of a step by their positions, without fillers: rank r has every so many-th from r on."""
    real = [batch[: len(batch) - fillers] for batch, fillers in answers]
    return [real[n % len(real)][n // len(real)] for n in range(sum(map(len, real)))]
