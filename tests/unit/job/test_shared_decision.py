"""One answer for all ranks of a bare srun."""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hyperpod_kit.errors import JobError
from hyperpod_kit.job import cli
from hyperpod_kit.job.resume import shared_decision
from tests.unit.job.toy_trainer import commit_checkpoint

RANK = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_LAUNCHER_PORT": "4242",
    "SLURM_PROCID": "0",
    "SLURMD_NODENAME": "n1",
}


def race(tmp_path: Path, ranks: int = 8) -> list[dict[str, object]]:
    """Every rank would choose something else; returns what each was told."""
    told: list[dict[str, object]] = []
    barrier = threading.Barrier(ranks)

    def rank(number: int) -> None:
        barrier.wait()
        told.append(
            shared_decision.read_or_make_shared_record(
                str(tmp_path), "7.0.0.1", lambda: {"from": f"seq-{number}", "step": number}
            )
        )

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return told


def test_all_ranks_are_told_the_same(tmp_path: Path) -> None:
    told = race(tmp_path)
    assert len(told) == 8 and all(one == told[0] for one in told)
    left = sorted(os.listdir(tmp_path / "decisions"))
    assert left == ["7.0.0.1.json", "7.0.0.1.json.begun"], "nothing temporary is left"


def test_also_where_there_are_no_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **options: object) -> None:
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", refuse)
    told = race(tmp_path)
    assert all(one == told[0] for one in told)


def test_task_prolog_exports_the_choice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = commit_checkpoint(str(tmp_path), 1, 1, 40)
    for key, value in {**RANK, "HPK_CHECKPOINT_ROOT": str(tmp_path)}.items():
        monkeypatch.setenv(key, value)
    assert cli.main(["task-prolog"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"export HPK_RESUME_FROM={name}",
        "export HPK_RESUME_STEP=40",
        "export HPK_RESUME_KIND=hyperpod-kit",
        f"print hyperpod-kit: resumes from {name}, step 40",
    ]
    commit_checkpoint(str(tmp_path), 1, 2, 50)
    monkeypatch.setenv("SLURM_PROCID", "1")
    assert cli.main(["task-prolog"]) == 0
    assert f"HPK_RESUME_FROM={name}" in capsys.readouterr().out, "a later rank is told the same"


def test_a_launch_below_a_root_that_is_gone_decides_nothing(tmp_path: Path) -> None:
    """HyperPod's step retry would make the root anew and begin at step 0."""
    state = tmp_path / "root/.hpk/job"
    with pytest.raises(FileNotFoundError):
        shared_decision.read_or_make_shared_record(str(state), "7.0.0.1", lambda: pytest.fail("it decided"))
    assert not list(tmp_path.iterdir())


def test_a_first_start_is_called_one() -> None:
    lines = shared_decision.task_prolog_lines({"from": "none", "step": 0}, "0")
    assert lines[0] == "export HPK_RESUME_FROM=none"
    assert lines[-1].endswith("starts at step 0: no checkpoint was ever committed")


def test_task_prolog_cancels_where_nothing_is_valid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = commit_checkpoint(str(tmp_path), 1, 1, 40)
    (tmp_path / name / "shard-00000.safetensors").unlink()
    for key, value in {**RANK, "HPK_CHECKPOINT_ROOT": str(tmp_path)}.items():
        monkeypatch.setenv(key, value)
    assert cli.main(["task-prolog"]) == 86
    out = capsys.readouterr().out
    assert out.startswith("print hyperpod-kit: NoValidCheckpoint") and "export" not in out
    record = json.loads(next((tmp_path / ".hpk" / "decisions").glob("*.json")).read_text())
    assert record["from"] is None and record["rejected"][0]["attempt"] == name


def test_a_file_system_that_is_not_mounted_is_no_fresh_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Made anew on the local disk it would say that nothing was ever committed."""
    for key, value in {**RANK, "HPK_CHECKPOINT_ROOT": f"{tmp_path}/fsx/run1"}.items():
        monkeypatch.setenv(key, value)
    with pytest.raises(JobError, match=f"{tmp_path}/fsx does not exist"):
        cli.main(["task-prolog"])
    assert list(tmp_path.iterdir()) == []


def test_one_node_decides_and_the_others_wait_for_it(tmp_path: Path) -> None:
    """Each of them would read the whole of another framework's checkpoint."""
    asked = []

    def decide() -> shared_decision.Record:
        asked.append(1)
        time.sleep(0.3)
        return {"from": "none", "step": 0}

    with ThreadPoolExecutor(8) as nodes:
        records = list(
            nodes.map(lambda _: shared_decision.read_or_make_shared_record(str(tmp_path), "7.0.0", decide), range(8))
        )
    assert len(asked) == 1 and all(record["from"] == "none" for record in records)


def test_where_the_first_dies_in_its_decision_another_decides(tmp_path: Path) -> None:
    def dies() -> shared_decision.Record:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        shared_decision.read_or_make_shared_record(str(tmp_path), "7.0.0", dies)
    record = shared_decision.read_or_make_shared_record(
        str(tmp_path), "7.0.0", lambda: {"from": "none", "step": 0}, head_start=0.2
    )
    assert record["from"] == "none"


def test_the_key_tells_hyperpods_retries_of_a_step_apart() -> None:
    assert shared_decision.srun_launch_key_zeros_if_unset(RANK) == "7.0.0.4242"
    assert shared_decision.srun_launch_key_zeros_if_unset(
        {**RANK, "SLURM_STEP_LAUNCHER_PORT": "4243"}
    ) != shared_decision.srun_launch_key_zeros_if_unset(RANK)
