"""A job on a GPU under `job run`, whose ranks are killed: as one that nobody disturbed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from tests.unit.job import killed, test_huggingface
from tests.unit.job.conftest import Job
from tests.unit.job.conftest import job as job

HERE = Path(__file__).parent
TRAINER = os.path.relpath(HERE / "trainer.py", HERE.parents[1] / "examples" / "frameworks")
IMPORTED = ("torch.distributed.fsdp",)
STEPS = 40


def ended(folder: Path) -> Any:
    return killed.losses(folder), (folder / "weights").read_text()


@pytest.mark.parametrize("words", [(), ("--overlap",)], ids=["blocking", "overlapped"])
def test_two_ranks_that_are_killed_five_times(job: Job, tmp_path: Path, words: tuple[str, ...]) -> None:
    calm, _ = killed.ends_as_undisturbed(job, TRAINER, tmp_path, ended, STEPS, words, IMPORTED)
    assert [len(trace) for trace in calm.values()] == [STEPS, STEPS]


def test_over_nccl_with_fsdp2(job: Job, tmp_path: Path) -> None:
    """One rank, as there is one device: the engine's own messages go over gloo beside NCCL."""
    alone(job, tmp_path, TRAINER, ended, ("--nccl",), IMPORTED)


def test_the_hugging_face_trainer(job: Job, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    alone(job, tmp_path, "huggingface.py", test_huggingface.ended, (), ("transformers.trainer",))


def alone(
    job: Job, folder: Path, example: str, seen: Callable[[Path], Any], words: tuple[str, ...], imported: tuple[str, ...]
) -> None:
    """One rank that is killed three times."""
    assert killed.train(job, example, folder / "calm", ranks=1, words=words, imported=imported) == 0
    calm = seen(folder / "calm")
    job.events.clear()
    kills = "0 5 0.05\n0 15 0.05\n0 25 0.01"
    assert killed.train(job, example, folder / "killed", kills=kills, ranks=1, words=words, imported=imported) == 0
    assert [one["class"] for one in job.said("ended")] == ["crash"] * 3 + ["done"]
    assert "memory" in {one["tier"] for one in job.said("restored")}
    assert seen(folder / "killed") == calm
