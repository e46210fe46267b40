"""The Hugging Face Trainer on two ranks (gloo) under `job run`: killed at random moments, it ends bit for bit as it
would have ended."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("transformers")

from tests.unit.job import killed
from tests.unit.job.conftest import Job

STEPS = 80


def ended(folder: Path) -> tuple[list[tuple[float, ...]], str]:
    """(what was logged of each step, digest of the weights): floats have all their digits in JSON."""
    logged = json.loads((folder / "trainer_state.json").read_text())["log_history"]
    trace: list[tuple[float, ...]] = [
        (row["step"], row["loss"], row["grad_norm"], row["learning_rate"]) for row in logged if "loss" in row
    ]
    return trace, killed.digest_of([(folder / "model.safetensors").read_bytes()])


@pytest.mark.full
@pytest.mark.timeout(900)
def test_killed_at_random_moments_it_ends_as_it_would_have(job: Job, tmp_path: Path) -> None:
    trace, _ = killed.ends_as_undisturbed(
        job, "huggingface.py", tmp_path, ended, STEPS, imported=("transformers.trainer",)
    )
    assert [row[0] for row in trace] == list(range(1, STEPS + 1))
