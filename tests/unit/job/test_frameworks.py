"""Each program of examples/frameworks on two ranks (gloo) under `job run`: killed at random moments, it ends bit for
bit as it would have ended. The Hugging Face Trainer: test_huggingface.py."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.unit.job import killed
from tests.unit.job.conftest import Job

STEPS = 80


def ended(folder: Path) -> tuple[dict[str, dict[int, str]], str]:
    """(the loss of each step, digest of the weights)."""
    import torch

    weights = torch.load(folder / "weights.pt", weights_only=True)
    parts = (value.numpy().tobytes() for _, value in sorted(weights.items()))
    return killed.losses(folder), killed.digest_of(parts)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("example", "needs"),
    [("dcp.py", "torch"), ("lightning_trainer.py", "lightning"), ("accelerate_loop.py", "accelerate")],
)
def test_killed_at_random_moments_it_ends_as_it_would_have(job: Job, tmp_path: Path, example: str, needs: str) -> None:
    pytest.importorskip(needs)
    traces, _ = killed.ends_as_undisturbed(job, example, tmp_path, ended, STEPS)
    assert all(list(trace) == list(range(1, STEPS + 1)) for trace in traces.values()) and len(traces) == 2
