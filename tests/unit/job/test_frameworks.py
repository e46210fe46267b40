"""Each program of examples/frameworks on two ranks (gloo) under `job run`: killed at random moments, it ends bit for
bit as it would have ended. The Hugging Face Trainer: test_huggingface.py."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from hyperpod_kit.checkpoint.export import export
from hyperpod_kit.checkpoint.repository import layout
from tests.support.damage import flip
from tests.unit.job import killed
from tests.unit.job.conftest import Job

STEPS = 80


def ended(folder: Path) -> tuple[dict[str, dict[int, str]], str]:
    """(the loss of each step, digest of the weights)."""
    import torch

    weights = [torch.load(path, weights_only=True) for path in sorted(folder.glob("weights*.pt"))]
    parts = (value.numpy().tobytes() for one in weights for _, value in sorted(one.items()))
    return killed.losses(folder), killed.digest_of(parts)


def optimizer_format() -> tuple[str, ...]:
    """Before 0.14 Megatron has one format without flattened tensors."""
    old = tuple(map(int, importlib.metadata.version("megatron-core").split(".")[:2])) < (0, 14)
    return ("--optimizer-format", "dp_zero_gather_scatter") if old else ()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("example", "needs", "words"),
    [
        ("dcp.py", "torch", ()),
        ("lightning_trainer.py", "lightning", ()),
        ("accelerate_loop.py", "accelerate", ()),
        ("megatron_gpt.py", "megatron", ()),
        ("megatron_gpt.py", "megatron", ("--tensor-parallel", "2")),
        *(("deepspeed_zero.py", "deepspeed", ("--stage", stage)) for stage in "123"),
    ],
)
def test_killed_at_random_moments_it_ends_as_it_would_have(
    job: Job, tmp_path: Path, example: str, needs: str, words: tuple[str, ...]
) -> None:
    if importlib.util.find_spec(needs) is None:  # not imported here: Megatron changes torch
        pytest.skip(f"{needs} is not installed")
    if needs == "megatron":
        words = (*words, *optimizer_format())
    traces, _ = killed.ends_as_undisturbed(job, example, tmp_path, ended, STEPS, words)
    assert all(list(trace) == list(range(1, STEPS + 1)) for trace in traces.values()) and len(traces) == 2


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_megatron_goes_on_with_fewer_ranks_past_a_flipped_byte_and_plain_megatron_reads_what_is_exported(
    job: Job, tmp_path: Path
) -> None:
    if importlib.util.find_spec("megatron") is None:
        pytest.skip("megatron is not installed")
    words = ("--steps", "6", "--save-every", "1", "--tensor-parallel", "2")
    assert killed.train(job, "megatron_gpt.py", tmp_path, words=words) == 0
    newest = max(job.root.glob("seq-*"))
    step = layout.parse_attempt(newest.name).step  # type: ignore[union-attr]
    flip(next(newest.glob("shard-*")), -5000)
    words = ("--steps", "10", "--save-every", "1", "--tensor-parallel", "1")
    job.events.clear()
    assert killed.train(job, "megatron_gpt.py", tmp_path, words=words, ranks=1) == 0
    (restored,) = job.said("restored")
    assert restored["tier"] == "storage" and restored["step"] < step
    assert export(str(job.root), "megatron", tmp_path / "exported").step == 10
    plain = [sys.executable, str(Path(__file__).with_name("plain_megatron.py"))]
    done = subprocess.run([*plain, tmp_path / "exported", tmp_path / "weights-0.pt"], capture_output=True, text=True)
    assert done.returncode == 0 and "step 10" in done.stdout, done.stderr
