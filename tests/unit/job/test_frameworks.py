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

from hyperpod_kit.checkpoint.convert.export_checkpoint import export
from hyperpod_kit.checkpoint.repository.format import layout
from tests.support.capabilities import require
from tests.support.damage import flip
from tests.unit.job import killed
from tests.unit.job.conftest import Job

STEPS = 80
IMPORTED = {
    "torch": ("torch.distributed.fsdp",),
    "lightning": ("lightning",),
    "accelerate": ("accelerate",),
    "megatron": ("megatron_on_cpu", "megatron.core.models.gpt.gpt_model", "megatron.core.dist_checkpointing"),
    "deepspeed": ("deepspeed",),
    "torchtitan": ("torch.distributed.fsdp", "datasets", "tokenizers", "torchdata.stateful_dataloader", "tyro"),
}
"""What a rank's process has imported when it begins. Not torchtitan: it asks then which ranks there are."""


def ended(folder: Path) -> tuple[dict[str, dict[int, str]], str]:
    """(the loss of each step, digest of the weights)."""
    import torch

    weights = [torch.load(path, weights_only=True) for path in sorted(folder.glob("weights*.pt"))]
    parts = (value.numpy().tobytes() for one in weights for _, value in sorted(one.items()))
    return killed.losses(folder), killed.digest_of(parts)


def optimizer_format(words: tuple[str, ...]) -> tuple[str, ...]:
    """The words for this version of Megatron."""
    if not old_megatron():
        return words
    if "dp_reshardable" in words:
        require("megatron-0.14")
    return (*words, "--optimizer-format", "dp_zero_gather_scatter")


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("example", "needs", "words"),
    [
        ("dcp.py", "torch", ()),
        ("lightning_trainer.py", "lightning", ()),
        ("accelerate_loop.py", "accelerate", ()),
        ("megatron_gpt.py", "megatron", ()),
        ("megatron_gpt.py", "megatron", ("--tensor-parallel", "2")),
        ("megatron_gpt.py", "megatron", ("--optimizer-format", "dp_reshardable")),
        *(("deepspeed_zero.py", "deepspeed", ("--stage", stage)) for stage in "123"),
        ("torchtitan_llama.py", "torchtitan", ()),
    ],
)
def test_killed_at_random_moments_it_ends_as_it_would_have(
    job: Job, tmp_path: Path, example: str, needs: str, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    require(needs)
    if needs == "megatron":
        words = optimizer_format(words)
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")  # for the process that imports DeepSpeed for all
    monkeypatch.syspath_prepend(killed.ROOT / "examples" / "frameworks")
    traces, _ = killed.ends_as_undisturbed(job, example, tmp_path, ended, STEPS, words, IMPORTED[needs])
    assert all(list(trace) == list(range(1, STEPS + 1)) for trace in traces.values()) and len(traces) == 2


def old_megatron() -> bool:
    """Before 0.14 Megatron has one format of the optimizer without flattened tensors."""
    return tuple(map(int, importlib.metadata.version("megatron-core").split(".")[:2])) < (0, 14)


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("divided", ["TP", "DP"])
def test_megatron_goes_on_with_fewer_ranks_past_a_flipped_byte_and_plain_megatron_reads_what_is_exported(
    job: Job, tmp_path: Path, divided: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tensor parallel ranks in the format that gathers; data parallel ones in that which does not."""
    require("megatron")
    if divided == "TP":
        require("megatron-0.14")
    monkeypatch.syspath_prepend(killed.ROOT / "examples" / "frameworks")
    ours = ("--optimizer-format", "dp_zero_gather_scatter" if old_megatron() else "dp_reshardable")
    given = ("--save-every", "1", *(ours if divided == "DP" else ()))

    def train(ranks: int, last: int, parallel: str) -> int:
        words = ("--steps", str(last), "--tensor-parallel", parallel, *given)
        return killed.train(job, "megatron_gpt.py", tmp_path, ranks=ranks, words=words, imported=IMPORTED["megatron"])

    assert train(2, 6, "2" if divided == "TP" else "1") == 0
    newest = max(job.root.glob("seq-*"))
    step = layout.parse_checkpoint_id(newest.name).step  # type: ignore[union-attr]
    flip(next(newest.glob("shard-*")), -5000)
    job.events.clear()
    assert train(1, 10, "1") == 0
    (restored,) = job.said("restored")
    assert restored["tier"] == "storage" and restored["step"] < step
    assert export(str(job.root), "megatron", tmp_path / "exported").step == 10
    plain = [sys.executable, str(Path(__file__).with_name("plain_megatron.py"))]
    done = subprocess.run([*plain, tmp_path / "exported", tmp_path / "weights-0.pt"], capture_output=True, text=True)
    assert done.returncode == 0 and "step 10" in done.stdout, done.stderr
