"""A real Slurm whose plugin is of another release, and roots that lose their manifests under jobs: nothing begins at
step 0 that should not."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Iterator

import pytest

from hyperpod_kit.checkpoint import Manager
from hyperpod_kit.checkpoint.repository.records import catalog
from hyperpod_kit.job import cli
from tests.support.wait import until
from tests.unit.job.private_slurm import REPOSITORY, PrivateSlurm, running
from tests.unit.job.test_real_slurm import TRAINER, Work
from tests.unit.job.toy_trainer import commit_checkpoint

pytestmark = [pytest.mark.rehearsal, pytest.mark.needs("slurm")]

MAIN = Path(cli.__file__).with_name("__main__.py")
TORCH_TRAINER = """
import os, torch
from hyperpod_kit.checkpoint import Manager, State
manager = Manager(os.environ["HPK_CHECKPOINT_ROOT"])
try:
    print("BEGINS", manager.restore(State(torch.nn.Linear(4, 4))).next_step, flush=True)
except Exception as err:
    print("REFUSED", err, "HINT", getattr(err, "hint", ""), flush=True)
    raise SystemExit(1)
finally:
    manager.close()
"""


@pytest.fixture(scope="module")
def slurm() -> Iterator[PrivateSlurm]:
    with running(nodes=2, user=os.getuid()) as cluster:
        (cluster.base / "trainer.py").write_text(TORCH_TRAINER)
        prolog = cluster.base / "prolog.sh"
        prolog.write_text(f"#!/bin/sh\nexec {sys.executable} {MAIN} task-prolog\n")
        prolog.chmod(0o755)
        yield cluster


def load_plugin(slurm: PrivateSlurm, *, version: str = "", prolog: str = "") -> None:
    """The plugin of this Slurm, or one that was compiled for `version`; `prolog` in place of the installed program."""
    include = slurm.base / "include"
    if version:
        slurm.call("cp", "-r", "/usr/include/slurm", f"{include}/")
        slurm.call(
            "sed", "-i", f"s/\\(define SLURM_VERSION_NUMBER\\).*/\\1 {version}/", f"{include}/slurm/slurm_version.h"
        )
    built = slurm.base / f"auto_resume{version}.so"
    if not built.exists():
        source = REPOSITORY / "slurm" / "plugin" / "auto_resume.c"
        slurm.call("cc", "-shared", "-fPIC", "-O2", f"-I{include}", "-o", str(built), str(source))
    (slurm.base / "plugstack.conf").write_text(f"optional {built} {f'prolog={prolog}' if prolog else ''}\n")


def srun(slurm: PrivateSlurm, root: Path, *program: str, **env: str) -> str:
    """What a bare srun of one task says, out and err."""
    export = ",".join(f"{name}={value}" for name, value in {"HPK_CHECKPOINT_ROOT": str(root), **env}.items())
    words = " ".join(program or (sys.executable, str(slurm.base / "trainer.py")))
    shm = slurm.base / "shm"
    shm.mkdir(exist_ok=True, mode=0o700)
    lines = f"srun -n1 --export=ALL,PYTHONPATH={REPOSITORY},HPK_SHM_DIR={shm},{export} {words} 2>&1"
    return slurm.call("bash", "-c", lines, check=False)


@pytest.mark.full
@pytest.mark.needs("slurm-of-this-host")
def test_a_plugin_of_another_slurm_lets_no_trainer_begin_at_step_0(slurm: PrivateSlurm) -> None:
    root = slurm.base / "run"
    root.mkdir()
    (slurm.base / "include").mkdir()
    load_plugin(slurm, version="0x190b00")
    refused = srun(slurm, root)
    assert "REFUSED step " in refused and "was started without a checkpoint being chosen" in refused, refused
    assert "job doctor" in refused
    assert "BEGINS 0" in srun(slurm, root, HPK_AUTO_RESUME="0")
    load_plugin(slurm, prolog=f"{slurm.base}/prolog.sh")
    told = srun(slurm, root)
    assert "starts at step 0: no checkpoint was ever committed" in told and "BEGINS 0" in told, told
    load_plugin(slurm, prolog=f"{REPOSITORY}/slurm/task_prolog.sh")
    told = srun(slurm, root, "echo", "started")
    assert "no task of this step starts" in told and "started\n" not in told.splitlines(keepends=True), told


@pytest.mark.full
@pytest.mark.needs("slurm-of-this-host")
def test_a_bare_step_on_a_root_that_lost_its_manifests(slurm: PrivateSlurm) -> None:
    root = slurm.base / "bare"
    load_plugin(slurm, prolog=f"{slurm.base}/prolog.sh")
    import torch

    from hyperpod_kit.checkpoint import State

    with Manager(str(root)) as manager:
        state = State(torch.nn.Linear(4, 4))
        manager.restore(state)
        assert manager.save(9, state).wait("durable", 60)
    attempt = str(catalog.newest_committed(str(root)))
    (root / attempt / "MANIFEST.json").unlink()
    told = srun(slurm, root, "echo", "started")
    assert f"{attempt}: it was committed, as LATEST says" in told and "HPK_FRESH=1" in told, told
    assert "started" not in told.splitlines()
    assert "BEGINS 0" in srun(slurm, root, HPK_FRESH="1")
    assert "BEGINS 0" in srun(slurm, root), "put down, for all that follow"


@pytest.mark.full
def test_a_job_whose_manifests_vanish_between_two_attempts_is_held(slurm: PrivateSlurm) -> None:
    load_plugin(slurm)
    work = Work(slurm)
    last = work.place / "crashed"
    # Rank 0 waits for the one that crashed, so nothing is committed after the newest.
    newest = f"{work.root}/seq-*.step-0000000006.*/MANIFEST.json"
    lose = f"until ls {newest}; do sleep 0.1; done\nrm -f {work.root}/seq-*/MANIFEST.json"
    trainer = work.place / "train.sh"
    trainer.write_text(f'#!/bin/sh\n/usr/bin/python3 -I {TRAINER} "$@" && exit\n{lose}\nexit 9\n')
    trainer.chmod(0o755)
    script = work.place / "job.sbatch"

    def submit(*options: str) -> None:
        script.write_text(
            "#!/bin/bash\n#SBATCH -N2 --ntasks-per-node=1 --open-mode=append --auto-resume=1\n"
            f"#SBATCH -o {work.place}/out\n"
            f"exec /usr/bin/python3 -I -S {MAIN} run --json-lines --checkpoint-root {work.root} {' '.join(options)} -- "
            f"{trainer} --steps 12 --every 2 --crash 7 --once {last}\n"
        )
        work.id = slurm.sbatch(str(script), cwd=work.place)

    commit_checkpoint(str(work.root), 1, 1, 1)
    submit()
    work.state("REQUEUE_HOLD", "SPECIAL_EXIT", "FAILED")
    assert work.detail("ExitCode") == "86:0" or "HOLD" in slurm.state(work.id)
    (event,) = work.events("gave_up")
    assert event["error"] == "NoValidCheckpoint"
    assert all("MANIFEST.json is gone" in one["why"] for one in event["rejected"])
    assert not any(step["from"] == "none" for step in work.events("attempt"))
    slurm.call("scancel", work.id)
    submit("--fresh")
    work.state("COMPLETED")
    assert [event["event"] for event in work.events("fresh")] == ["fresh"]
    assert work.events("attempt")[-1]["from"] == "none"
    until(lambda: not slurm.call("squeue", "-h").strip(), what="no job")
