"""The Hugging Face Trainer on two ranks (gloo) under `job run`: killed at random moments, it ends bit for bit as it
would have ended."""

from __future__ import annotations

import hashlib
import json
import os
import random
import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers")

from tests.unit.job.conftest import Job

HERE = Path(__file__).parent
EXAMPLE = HERE.parents[2] / "examples" / "frameworks" / "huggingface.py"
STEPS = 80


def train(job: Job, folder: Path, *, kills: str = "", ranks: int = 2) -> int:
    """Run the example under `job run`, with its checkpoints where the job's root is."""
    for name in ("shm", "starts"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "kills").write_text(kills)
    job.root = folder / "checkpoints"
    job.environment.update(
        SLURM_NTASKS=str(ranks),
        PYTHONPATH=str(EXAMPLE.parents[2]),
        OMP_NUM_THREADS="1",
        HF_HUB_OFFLINE="1",
        HPK_SHM_DIR=str(folder / "shm"),
        KILLS=str(folder / "kills"),
        STARTS=str(folder / "starts"),
        ROOT=str(job.root),
        PORT=str(os.getpid()),
    )
    return job.run(command=(sys.executable, str(HERE / "torch_ranks.py"), str(EXAMPLE), "--output", str(folder)))


def ended(folder: Path) -> tuple[list[tuple[float, ...]], str]:
    """(what was logged of each step, digest of the weights): floats have all their digits in JSON."""
    logged = json.loads((folder / "trainer_state.json").read_text())["log_history"]
    trace = [(row["step"], row["loss"], row["grad_norm"], row["learning_rate"]) for row in logged if "loss" in row]
    return trace, hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


@pytest.mark.slow  # transformers, imported in fourteen processes
@pytest.mark.timeout(900)
def test_killed_at_random_moments_it_ends_as_it_would_have(job: Job, tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(10**6)
    chance = random.Random(seed)
    assert train(job, tmp_path / "calm") == 0
    calm = ended(tmp_path / "calm")
    assert [row[0] for row in calm[0]] == list(range(1, STEPS + 1))
    steps = sorted(chance.sample(range(2, STEPS - 8), 5))
    kills = "\n".join(f"{chance.randrange(2)} {step} {chance.uniform(0, 0.2)}" for step in steps)
    job.events.clear()
    assert train(job, tmp_path / "killed", kills=kills) == 0, f"seed {seed}"
    assert [one["class"] for one in job.said("ended")] == ["crash"] * 5 + ["done"], f"seed {seed}"
    assert "memory" in {one["tier"] for one in job.said("restored")}, f"seed {seed}"
    assert ended(tmp_path / "killed") == calm, f"seed {seed}: kills {kills!r}"
