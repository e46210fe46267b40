"""torchao's 8-bit AdamW and float8 all-gather under FSDP2: killed five times, and on another number of ranks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from tests.unit.job import killed
from tests.unit.job.conftest import Job
from tests.unit.job.conftest import job as job

HERE = Path(__file__).parent
TRAINER = os.path.relpath(HERE.parent / "gpu" / "low_precision.py", HERE.parents[1] / "examples" / "frameworks")
STEPS = 30
KINDS = [pytest.param((), id="8-bit AdamW"), pytest.param(("--float8",), id="float8 all-gather")]

pytestmark = [pytest.mark.needs("torchao"), pytest.mark.full, pytest.mark.distributed]


@pytest.fixture(autouse=True)
def without_compiled_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """torchao's own are of one version of torch."""
    monkeypatch.setenv("TORCHAO_FORCE_SKIP_LOADING_SO_FILES", "1")


def ended(folder: Path) -> Any:
    return killed.losses(folder), [(folder / f"weights-{rank}").read_text() for rank in range(2)]


@pytest.mark.parametrize("words", KINDS)
def test_two_ranks_that_are_killed_five_times(job: Job, tmp_path: Path, words: tuple[str, ...]) -> None:
    imported = ("torch.distributed.fsdp",)
    calm, _ = killed.ends_as_undisturbed(job, TRAINER, tmp_path, ended, STEPS, (*words, "--device", "cpu"), imported)
    assert [len(trace) for trace in calm.values()] == [STEPS, STEPS]


@pytest.mark.parametrize("words", KINDS)
@pytest.mark.parametrize("ranks", [1, 4])
def test_on_another_number_of_ranks(tmp_path: Path, ranks: int, words: tuple[str, ...]) -> None:
    run(2, tmp_path, "save", words)
    run(ranks, tmp_path, "restore", words)
    assert (tmp_path / "restore").read_text() == (tmp_path / "save").read_text()


def run(ranks: int, folder: Path, work: str, words: tuple[str, ...]) -> None:
    (folder / "shm").mkdir(exist_ok=True)
    launched = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    environment = {
        **os.environ,
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "HPK_SHM_DIR": str(folder / "shm"),
        "PYTHONPATH": os.pathsep.join([str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")]),
    }
    program = [str(HERE / "resharded.py"), str(folder / "root"), work, str(folder / work), *words]
    subprocess.run([*launched, *program], env=environment, check=True, timeout=400)
