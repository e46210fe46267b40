"""The Hugging Face Trainer, Lightning and Accelerate on other numbers of ranks, replicated and under FSDP2: what two
ranks saved goes on on one and on three, past a flipped byte, with the losses of two; and each trainer without us reads
what is left."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import shutil
from pathlib import Path
from typing import Dict, Tuple

import pytest

pytest.importorskip("torch")

from hyperpod_kit.checkpoint.convert.export_checkpoint import export
from hyperpod_kit.checkpoint.repository.records import catalog
from tests.support.capabilities import require
from tests.support.damage import flip
from tests.unit.job import killed
from tests.unit.job.conftest import Job
from tests.unit.job.test_frameworks import ended

PROGRAM = str(Path(__file__).with_name("trainer_worlds.py"))
SAVED, MOVED, LAST = 13, 15, 17
"""An epoch has ten steps: all in the middle of the second."""
NEEDS = {"huggingface": "transformers", "lightning": "lightning", "accelerate": "accelerate"}
IMPORTED = {"huggingface": ("transformers.trainer",), "lightning": ("lightning",), "accelerate": ("accelerate",)}
every_kind = pytest.mark.parametrize(
    "words", [("--kind", kind, *more) for kind in NEEDS for more in ((), ("--sharded",))], ids=" ".join
)


def needs(words: Tuple[str, ...]) -> None:
    require(NEEDS[words[1]])


def old_accelerate() -> bool:
    """Accelerate 1.12 by itself, without us, does not put the optimizer back as it was under FSDP2 (seen)."""
    return tuple(map(int, importlib.metadata.version("accelerate").split(".")[:2])) < (1, 13)


def train(job: Job, folder: Path, ranks: int, last: int, words: Tuple[str, ...]) -> Dict[int, float]:
    """The mean over the ranks of each step's loss that this start trained."""
    for path in folder.glob("losses-*.txt"):
        path.unlink()
    job.events.clear()
    given = (*words, "--steps", str(last))
    assert killed.train(job, PROGRAM, folder, ranks=ranks, words=given, imported=IMPORTED[words[1]]) == 0
    each = [{step: float.fromhex(text) for step, text in one.items()} for one in killed.losses(folder).values()]
    assert len(each) == ranks and all(one.keys() == each[0].keys() for one in each)
    return {step: sum(one[step] for one in each) / ranks for step in each[0]}


def close(one: Dict[int, float], other: Dict[int, float]) -> bool:
    """Up to the order in which gradients of ranks are added."""
    return all(abs(loss - other[step]) < 2e-4 * abs(other[step]) for step, loss in one.items())


@pytest.mark.full
@pytest.mark.timeout(1200)
@every_kind
def test_on_one_rank_and_on_three_past_a_flipped_byte_and_without_us(
    job: Job, tmp_path: Path, words: Tuple[str, ...]
) -> None:
    needs(words)
    calm, moved = tmp_path / "calm", tmp_path / "moved"
    expected = train(job, calm, 2, LAST, words)
    assert list(expected) == list(range(1, LAST + 1))
    assert_reads_what_is_exported(words[1], str(job.root), calm)
    assert train(job, moved, 2, SAVED, words) == {step: expected[step] for step in range(1, SAVED + 1)}
    if words[1] == "accelerate" and not (old_accelerate() and "--sharded" in words):  # its own load_state, on two ranks
        (tmp_path / "plain").mkdir()
        shutil.copytree(moved / "plain", tmp_path / "plain" / "plain")
        rest = train(job, tmp_path / "plain", 2, LAST, (*words, "--plain", str(SAVED)))
        assert rest == {step: expected[step] for step in range(SAVED + 1, LAST + 1)}

    root = moved / "checkpoints"
    newest, *_ = catalog.list_checkpoints(str(root))
    assert newest.name is not None and newest.name.step == SAVED
    flip(next((root / newest.checkpoint_id).glob("shard-*")), -40)
    for ranks, last in ((1, MOVED), (3, LAST)):
        losses = train(job, moved, ranks, last, words)
        (restored,) = job.said("restored")
        assert restored["tier"] == "storage"
        assert list(losses) == list(range(restored["step"] + 1, last + 1))
        assert close(losses, expected), (losses, expected)
        assert restored["step"] < SAVED if ranks == 1 else restored["step"] == MOVED


def assert_reads_what_is_exported(kind: str, root: str, folder: Path) -> None:
    """The trainer's own functions make of the newest checkpoint the weights that the training left in `folder`."""
    import torch

    expected = torch.load(folder / "weights.pt", weights_only=True)
    out = folder / ("last.ckpt" if kind == "lightning" else "exported")
    if kind == "accelerate":
        import accelerate

        export(root, "safetensors", out.with_suffix(".safetensors"))
        found = accelerate.utils.load_state_dict(str(out.with_suffix(".safetensors")))
    elif kind == "lightning":
        export(root, kind, out)
        found = torch.load(out, weights_only=True)["state_dict"]
    else:
        from transformers import LlamaForCausalLM

        export(root, kind, out)
        found = LlamaForCausalLM.from_pretrained(out).state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(value, expected[name]) for name, value in found.items())


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", list(NEEDS))
def test_killed_at_random_moments_under_fsdp2(job: Job, tmp_path: Path, kind: str) -> None:
    words = ("--kind", kind, "--sharded", "--steps", "160")
    needs(words)
    traces, _ = killed.ends_as_undisturbed(job, PROGRAM, tmp_path, ended, 80, words, IMPORTED[kind])
    assert all(list(trace) == list(range(1, 161)) for trace in traces.values()) and len(traces) == 2
