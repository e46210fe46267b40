"""The HF Trainer on two processes (gloo) under SIGKILL: resumed, each rank receives the batches that it would have."""

from __future__ import annotations

import json
import os
import signal

import pytest

from hyperpod_kit.data.loading.sample_log_check import check_sample_log
from tests.support import warm
from tests.support.ports import free_port
from tests.unit.data.test_trainer import ENVIRONMENT, PROGRAM, losses

pytest.importorskip("transformers")

pytestmark = pytest.mark.full  # transformers, imported once more in each process

RANKS = 2


def ranks(place, name, start, *words, kill_at=None, victim=1):
    """Run the example on all ranks, as torchrun starts them, to their end, or until rank 0 has logged so many steps:
    then one is killed, and the others, which wait for it. Exit codes, and what rank 0 said."""
    port = free_port()
    processes = [
        warm.Program(
            [str(PROGRAM), str(place / "corpus"), "--root", str(place / name), *words],
            env={
                **os.environ,
                **ENVIRONMENT,
                "ACCELERATE_USE_CPU": "true",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "WORLD_SIZE": str(RANKS),
                "LOCAL_WORLD_SIZE": str(RANKS),
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "TORCHELASTIC_RUN_ID": f"{name}-{start}",
            },
            imported=warm.TRANSFORMERS,
            both=rank == 0,
        )
        for rank in range(RANKS)
    ]
    said, logged = [], 0
    first = processes[0].stdout
    for line in first:
        said.append(line)
        logged += "'loss'" in line
        if logged == kill_at:
            for process in (processes[victim], *processes):
                process.send_signal(signal.SIGKILL)
            break
    first.close()
    return [process.wait(200) for process in processes], "".join(said)


def received(ledger):
    """(position, rank) -> samples, the last time that they came."""
    found = {}
    for path in sorted(ledger.iterdir(), key=lambda path: path.stat().st_mtime_ns):
        rank = None
        for line in map(json.loads, path.read_text().splitlines()):
            rank = line.get("rank", rank)
            if "p" in line:
                found[line["p"], rank] = line["i"]
    return found


@pytest.fixture
def place(tmp_path):
    (tmp_path / "corpus").mkdir()
    lines = (f"document {n}: what it says\n" for n in range(100))
    (tmp_path / "corpus" / "a.txt").write_text("".join(lines))
    return tmp_path


@pytest.mark.timeout(400)
def test_each_rank_receives_the_same_batches(place):
    words = ("--epochs", "2", "--save-every", "4", "--batch", "3", "--accumulate", "2")  # 9 steps of 12 an epoch
    assert ranks(place, "calm", 0, *words, "--workers", "0")[0] == [0, 0]
    killed = [-signal.SIGKILL] * RANKS
    assert ranks(place, "killed", 0, *words, "--workers", "1", kill_at=6)[0] == killed
    assert ranks(place, "killed", 1, *words, "--workers", "0", kill_at=7, victim=0)[0] == killed
    assert ranks(place, "killed", 2, *words, "--workers", "0")[0] == [0, 0]
    calm = received(place / "calm" / "ledger")
    assert received(place / "killed" / "ledger") == calm and len(calm) == 2 * 9 * RANKS
    found = check_sample_log(place / "killed" / "ledger")
    assert found.is_exactly_once and found.launches == 3 and found.rolled_back > 0
    assert [(one.once, one.complete) for one in found.epochs] == [(100, True)] * 2
    assert losses(place / "killed" / "checkpoints") == losses(place / "calm" / "checkpoints")


def test_more_steps_than_the_data_has_raise_before_training(place):
    codes, said = ranks(place, "long", 0, "--epochs", "1", "--batch", "3", "--max-steps", "18", "--workers", "0")
    assert (
        0 not in codes
        and "max_steps=18 is more than 17, the steps in 1 epoch of 17 steps each" in said
        and "'loss'" not in said
    ), said
    assert not (place / "long" / "ledger").exists() or not received(place / "long" / "ledger")
