"""The scripts under slurm/jobs, given to a real Slurm as a user would."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Iterator

import pytest

from tests.support.wait import until
from tests.unit.job.private_slurm import PrivateSlurm
from tests.unit.job.test_real_slurm import MAIN, PYTHON, Work
from tests.unit.job.test_real_slurm import slurm as slurm

pytestmark = [pytest.mark.rehearsal, pytest.mark.needs("slurm")]

JOBS = Path(__file__).parents[3] / "slurm" / "jobs"
THIRD_PARTY = Path(__file__).with_name("third_party.py")


@pytest.fixture
def work(slurm: PrivateSlurm) -> Iterator[Work]:
    """A job's directory with a `hyperpod-kit` and a `torchrun` on PATH."""
    made = Work(slurm)
    programs = made.place / "bin"
    programs.mkdir()
    kit, torchrun = programs / "hyperpod-kit", programs / "torchrun"
    with_json = '[[ $1 == run ]] && set -- run --json-lines "${@:2}"'
    kit.write_text(f'#!/bin/bash\nshift\n{with_json}\nexec {PYTHON} -I -S {MAIN} "$@"\n')
    torchrun.write_text('#!/bin/bash\necho "torchrun on $SLURMD_NODENAME: $*"\n')
    for program in (kit, torchrun):
        program.chmod(0o755)
    try:
        yield made
    finally:
        shutil.rmtree(made.place, ignore_errors=True)


def submit(work: Work, script: str, *args: str) -> str:
    path = f"{work.place}/bin:/usr/bin:/bin:/usr/sbin:/sbin"
    work.id = work.slurm.sbatch(
        f"--output={work.place}/out", f"--export=ALL,PATH={path}", str(JOBS / script), *args, cwd=work.place
    )
    until(lambda: work.slurm.state(work.id) in ("COMPLETED", "FAILED", "SPECIAL_EXIT"), what="the end")
    return (work.place / "out").read_text()


def test_a_program_that_knows_nothing_of_us_resumes_from_its_newest_whole_checkpoint(work: Work) -> None:
    said = submit(work, "unmodified.sbatch", str(work.root), PYTHON, str(THIRD_PARTY), "--output_dir", str(work.root))
    assert work.slurm.state(work.id) == "COMPLETED", said
    first, second = work.events("attempt")
    assert (first["from"], second["from"], second["kind"], second["proof"]) == (
        "none",
        "checkpoint-10",
        "huggingface",
        "crc",
    )
    assert second["rejected"][0]["attempt"] == "checkpoint-20"
    assert sorted(line for line in said.splitlines() if line.startswith("third party")) == [
        "third party: rank 0 begins at 0",
        "third party: rank 0 begins at 10",
        "third party: rank 1 begins at 0",
        "third party: rank 1 begins at 10",
    ]
    # The program makes checkpoint-20 anew, and would have died of the torn one's directory.
    [aside] = work.events("set_aside")
    assert (work.root / aside["now"] / "pytorch_model.bin").stat().st_size == 900
    assert (work.root / "checkpoint-20").is_dir() and (work.root / "checkpoint-30").is_dir()


def test_torchrun_meets_at_the_first_node_of_the_step(work: Work) -> None:
    said = submit(work, "fsdp2.sbatch", str(work.root), "train.py", "--layers", "a b")
    assert work.slurm.state(work.id) == "COMPLETED", said
    [attempt] = work.events("attempt")
    nodes = attempt["nodes"]
    assert sorted(line for line in said.splitlines() if line.startswith("torchrun on ")) == [
        f"torchrun on {node}: --nnodes=2 --nproc-per-node=8 --max-restarts=0 --rdzv-backend=c10d "
        f"--rdzv-id={attempt['attempt']} --rdzv-endpoint={nodes[0]}:29400 train.py --layers a b"
        for node in nodes
    ]
