"""Each framework's loop over an ElasticLoader, on one and two ranks, while its user does what users do: what was
trained on is judged outside of the loader."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from hyperpod_kit.data import ElasticLoader
from tests.support import warm
from tests.support.rows import full
from tests.unit.data.framework_loops import BATCH, EPOCHS, FEW, LOOPS, SEED, Numbers

PROGRAM = Path(__file__).with_name("framework_loops.py")
IMPORTED = {
    "plain": warm.TORCH,
    "accelerate": (*warm.TORCH, "accelerate"),
    "fabric": (*warm.TORCH, "lightning.fabric"),
    "lightning": (*warm.TORCH, "lightning.pytorch"),
    "trainer": warm.TRANSFORMERS,
}
NEEDED = {"fabric": "lightning", "trainer": "transformers", "plain": "torch"}
ACTS = ("peek", "break", "limit", "restart", "killed")
BY_EPOCH = ("fabric", "lightning")
"""Whose loop begins an epoch of its own each time."""


def run(place, framework, act, ranks, *words):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = {
        **os.environ,
        "PYTHONPATH": str(PROGRAM.parents[3]),
        "PYTHONWARNINGS": "ignore",
        "OMP_NUM_THREADS": "1",
        "ACCELERATE_USE_CPU": "true",
        "HF_HUB_OFFLINE": "1",
    }
    own = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_RUN_ID": place.name}
    processes = [
        warm.Program(
            [str(PROGRAM), framework, act, str(place), *words],
            env={
                **env,
                **({**own, "LOCAL_WORLD_SIZE": str(ranks)} if ranks > 1 else {}),
                **({"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)} if ranks > 1 else {}),
            },
            imported=IMPORTED[framework],
            both=True,
        )
        for rank in range(ranks)
    ]
    said = [process.stdout.read() for process in processes]
    codes = [process.wait(200) for process in processes]
    assert codes == [0] * ranks, "\n".join(said)


def trained(place, ranks):
    """Of each rank, the batches in the order of its steps."""
    return [
        [json.loads(line) for line in (place / f"trained.{rank}.jsonl").read_text().splitlines()]
        for rank in range(ranks)
    ]


def epochs(ranks):
    """Of each rank, the batches of each epoch of a loop that nobody disturbs."""
    found = []
    for rank in range(ranks):
        loader = ElasticLoader(Numbers(), BATCH, seed=SEED, rank=rank, ranks=ranks)
        found.append([[batch[:, 0].int().tolist() for batch in loader] for _ in range(EPOCHS)])
    return found


def expected(framework, act, ranks):
    whole = epochs(ranks)
    if act == "limit" and framework == "trainer":
        return [first[:FEW] for first, _ in whole]
    if act == "limit":
        return [first[:FEW] + second[:FEW] for first, second in whole]
    if act == "break" and framework in BY_EPOCH:
        return [first[:FEW] + second for first, second in whole]
    return [first + second for first, second in whole]


@pytest.mark.parametrize("ranks", [1, *full(2)])
@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("framework", ["plain", *full(*(name for name in LOOPS if name != "plain"))])
def test_what_is_trained_on(framework, act, ranks, tmp_path):
    pytest.importorskip(NEEDED.get(framework, framework))
    run(tmp_path, framework, act, ranks)
    if act == "restart":
        run(tmp_path, framework, act, ranks, "restored")
    assert trained(tmp_path, ranks) == expected(framework, act, ranks)
