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
TRAINER, LOW_PRECISION = (
    os.path.relpath(HERE / name, HERE.parents[1] / "examples" / "frameworks")
    for name in ("trainer.py", "low_precision.py")
)
IMPORTED = ("torch.distributed.fsdp",)
STEPS = 40


def ended(folder: Path) -> Any:
    return killed.losses(folder), (folder / "weights").read_text()


def ended_alone(folder: Path) -> Any:
    return killed.losses(folder), (folder / "weights-0").read_text()


@pytest.mark.parametrize("words", [(), ("--overlap",)], ids=["blocking", "overlapped"])
def test_two_ranks_that_are_killed_five_times(job: Job, tmp_path: Path, words: tuple[str, ...]) -> None:
    calm, _ = killed.ends_as_undisturbed(job, TRAINER, tmp_path, ended, STEPS, words, IMPORTED)
    assert [len(trace) for trace in calm.values()] == [STEPS, STEPS]


def test_over_nccl_with_fsdp2(job: Job, tmp_path: Path) -> None:
    """One rank, as there is one device: the engine's own messages go over gloo beside NCCL."""
    alone(job, tmp_path, TRAINER, ended, ("--nccl",), IMPORTED)


@pytest.mark.needs("torchao")
@pytest.mark.parametrize(
    "words",
    [
        pytest.param((), id="8-bit AdamW"),
        pytest.param(("--float8",), id="float8 all-gather", marks=pytest.mark.needs("float8")),
    ],
)
def test_low_precision_under_fsdp2(job: Job, tmp_path: Path, words: tuple[str, ...]) -> None:
    """With another default device around the program, killed five times."""
    job.environment["TORCHAO_FORCE_SKIP_LOADING_SO_FILES"] = "1"  # its compiled parts are of one version of torch
    alone(job, tmp_path, LOW_PRECISION, ended_alone, words, IMPORTED, kills=(3, 7, 12, 17, 22))


def test_the_hugging_face_trainer(job: Job, tmp_path: Path) -> None:
    """Started as it is: the import of its packages asks the driver for devices, and no fork can use them then."""
    pytest.importorskip("transformers")
    alone(job, tmp_path, "huggingface.py", test_huggingface.ended, (), ())


def alone(
    job: Job,
    folder: Path,
    example: str,
    seen: Callable[[Path], Any],
    words: tuple[str, ...],
    imported: tuple[str, ...],
    kills: tuple[int, ...] = (5, 15, 25),
) -> None:
    """One rank that is killed soon after a checkpoint of each of these steps, or a later one, was committed."""
    assert killed.train(job, example, folder / "calm", ranks=1, words=words, imported=imported) == 0
    calm = seen(folder / "calm")
    job.events.clear()
    plan = "\n".join(f"0 {step} 0.05" for step in kills)
    assert killed.train(job, example, folder / "killed", kills=plan, ranks=1, words=words, imported=imported) == 0
    assert [one["class"] for one in job.said("ended")] == ["crash"] * len(kills) + ["done"]
    assert "memory" in {one["tier"] for one in job.said("restored")}
    assert seen(folder / "killed") == calm
