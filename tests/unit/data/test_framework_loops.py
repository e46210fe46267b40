"""Each framework's loop over an ElasticLoader, on one and two ranks, while its user does what users do: what was
trained on is judged outside of the loader."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from hyperpod_kit.data import ElasticLoader
from tests.support import warm
from tests.support.ports import free_port
from tests.support.rows import full
from tests.unit.data.framework_loops import BATCH, EPOCHS, FEW, SEED, Numbers

PROGRAM = Path(__file__).with_name("framework_loops.py")
IMPORTED = {
    "plain": warm.TORCH,
    "accelerate": (*warm.TORCH, "accelerate"),
    "fabric": (*warm.TORCH, "lightning.fabric"),
    "lightning": (*warm.TORCH, "lightning.pytorch"),
    "trainer": warm.TRANSFORMERS,
    "deepspeed": (*warm.TORCH, "deepspeed"),
    "deepspeed_repeating": (*warm.TORCH, "deepspeed"),
    "accelerate_deepspeed": (*warm.TORCH, "deepspeed"),
    "deepspeed_built_anew": (*warm.TORCH, "deepspeed"),
}
NEEDED = {
    "plain": ("torch",),
    "accelerate": ("accelerate",),
    "fabric": ("lightning",),
    "lightning": ("lightning",),
    "trainer": ("transformers",),
    "deepspeed": ("deepspeed",),
    "deepspeed_repeating": ("deepspeed",),
    "accelerate_deepspeed": ("accelerate", "deepspeed"),
}
ROWS = [
    pytest.param(name, marks=[pytest.mark.needs(*NEEDED[name]), *([] if name == "plain" else [pytest.mark.full])])
    for name in NEEDED
]
ACTS = ("peek", "break", "limit", "restart", "killed")
BY_EPOCH = ("fabric", "lightning")
"""Whose loop begins an epoch of its own each time."""


@pytest.fixture(autouse=True)
def deepspeed_on_cpus(monkeypatch):
    """For the process that imports it for all."""
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")


def run(place, framework, act, ranks, *words):
    port = free_port()
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(PROGRAM.parents[3]), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "PYTHONWARNINGS": "ignore",
        "OMP_NUM_THREADS": "1",
        "ACCELERATE_USE_CPU": "true",
        "HF_HUB_OFFLINE": "1",
        "GLOO_SOCKET_IFNAME": "lo",
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
@pytest.mark.parametrize("framework", ROWS)
def test_what_is_trained_on(framework, act, ranks, tmp_path):
    run(tmp_path, framework, act, ranks)
    if act == "restart":
        run(tmp_path, framework, act, ranks, "restored")
    assert trained(tmp_path, ranks) == expected(framework, act, ranks)


@pytest.mark.full
@pytest.mark.needs("deepspeed")
@pytest.mark.parametrize("ranks", [1, 2])
def test_deepspeed_builds_no_loader_of_its_parts(ranks, tmp_path):
    """Its own refusal of a loader as `training_data`, ours of a loader that it makes of the parts."""
    run(tmp_path, "deepspeed_built_anew", "", ranks)
    assert trained(tmp_path, ranks) == [first for first, _ in epochs(ranks)]
