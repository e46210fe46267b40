"""One rank of a run that tries each collective; what it saw goes to its file as JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from hyperpod_kit.checkpoint.ranks import collectives
from hyperpod_kit.checkpoint.ranks.collectives import Ranks
from hyperpod_kit.checkpoint.ranks.reason import Reason
from hyperpod_kit.errors import CheckpointError


def main(rank: int, world: int, meeting: str, answer: str) -> None:
    """Every collective once, in one order on all ranks."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world)
    ranks = Ranks()
    seen = {name: _of(lambda work=work: work(ranks)) for name, work in WORK.items()}  # type: ignore[misc]
    Path(answer).write_text(json.dumps(seen))
    dist.destroy_process_group()


def _of(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except CheckpointError as err:
        return f"CheckpointError: {err}"


def _sent(size: int) -> Callable[[Ranks], Any]:
    def work(ranks: Ranks) -> Any:
        value = bytes(number % 251 for number in range(size)) if ranks.rank == 1 else b"nobody asks for this"
        return ranks.broadcast(value, source=1).hex()

    return work


def _bounded(ranks: Ranks) -> Any:
    """Somebody says a length that nobody has memory for."""
    held = collectives._MAX_BYTES
    try:
        collectives._MAX_BYTES = 10_000
        return len(ranks.broadcast(b"x" * 20_000))
    finally:
        collectives._MAX_BYTES = held


WORK: dict[str, Callable[[Ranks], Any]] = {
    "meet": lambda ranks: ranks.handshake(["x" * 5000 * ranks.rank, ranks.rank]),
    "same": lambda ranks: ranks.gather({"plan": "alike", "size": 7}),
    "differ": lambda ranks: ranks.gather("y" * (3000 * ranks.rank)),
    "nothing": lambda ranks: ranks.gather(None),
    "one untold": lambda ranks: ranks.gather(object() if ranks.rank == 1 else "a word"),
    "all untold": lambda ranks: ranks.gather(object()),
    "agree": lambda ranks: str(ranks.gather_first_reason(Reason("torn") if ranks.rank == 2 else None)),
    "agreed": lambda ranks: ranks.gather_first_reason(None),
    "sent 0": _sent(0),
    "sent 4000": _sent(4000),
    "sent 9000": _sent(9000),
    "sent nothing of ours": lambda ranks: ranks.broadcast(object() if ranks.rank == 0 else None),
    "sent too much": _bounded,
    "handed out": lambda ranks: ranks.scatter(
        [{"rng": "z" * 300 * rank, "rank": rank} for rank in range(ranks.world)] if ranks.rank == 0 else None
    ),
    "after all that": lambda ranks: ranks.gather(ranks.rank),
}
