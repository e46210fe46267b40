"""The wrapper around a rank."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Callable

import pytest

from hyperpod_kit.job.base import exits, launch_failure
from hyperpod_kit.job.step import step_name
from hyperpod_kit.job.step.srun_step import StepPlan, step_environment, wrapper
from hyperpod_kit.slurm import verdict
from tests.support.wait import until


def write_exit(state: str) -> None:
    exits.write(state, "7.0.0", exits.Exit(0, "n1", "", 0, None, 0.0, 1.0))


def write_launch_failure(state: str) -> None:
    launch_failure.write(state, "7.0.0", 0, launch_failure.LaunchFailure("n1", "train.py", "No such file or directory"))


def write_verdict(state: str) -> None:
    environment = {"HPK_STATE": state, "HPK_ATTEMPT": "7.0.0"}
    verdict.write_verdict_if_under_job_run(environment, verdict.RestoreVerdict(verdict.NONE))


def wrapped(tmp_path: Path, *command: str) -> subprocess.Popen[bytes]:
    env = {
        **os.environ,
        "HPK_STATE": str(tmp_path),
        "HPK_ATTEMPT": "7.0.0",
        "SLURM_PROCID": "3",
        "SLURMD_NODENAME": "n4",
    }
    return subprocess.Popen([*wrapper(), *command], env=env)


@pytest.mark.parametrize(
    ("script", "srun_sees", "code", "number"),
    [
        ("exit 0", 0, 0, None),
        ("exit 3", 3, 3, None),
        ("exit 75", 0, 75, None),
        ("kill -9 $$", 137, None, 9),
        ("kill -15 $$", 143, None, 15),
    ],
)
def test_what_is_recorded(tmp_path: Path, script: str, srun_sees: int, code: int | None, number: int | None) -> None:
    assert wrapped(tmp_path, "/bin/sh", "-c", script).wait(20) == srun_sees
    [record] = exits.read(str(tmp_path), "7.0.0")
    assert (record.rank, record.node, record.code, record.signal) == (3, "n4", code, number)
    assert record.ended >= record.started > 0


def test_a_program_that_is_missing_is_127(tmp_path: Path) -> None:
    assert wrapped(tmp_path, "/no/such/program").wait(20) == 127
    assert exits.read(str(tmp_path), "7.0.0")[0].code == 127


def test_the_command_dies_with_its_wrapper(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    wrapper_process = wrapped(
        tmp_path,
        sys.executable,
        "-c",
        f"import os, signal; open({str(pid_file)!r}, 'w').write(str(os.getpid())); signal.pause()",
    )
    child = int(until(lambda: pid_file.read_text() if pid_file.exists() else "", what="pid of the command"))
    wrapper_process.kill()
    wrapper_process.wait(20)

    def has_ended() -> bool:
        try:
            return Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except OSError:
            return True

    until(has_ended, what="end of the command")


def test_the_wrapper_outlives_a_signal_to_the_whole_step(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    process = wrapped(tmp_path, "/bin/sh", "-c", f"trap 'exit 9' USR1; touch {ready}; while :; do sleep 0.05; done")
    until(ready.exists, what="ready command")
    process.send_signal(signal.SIGUSR1)
    child = int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0])
    os.kill(child, signal.SIGUSR1)
    assert process.wait(20) == 9
    assert exits.read(str(tmp_path), "7.0.0")[0].code == 9


def test_a_second_end_of_a_rank_does_not_replace_the_first(tmp_path: Path) -> None:
    for code in (1, 2):
        exits.write(str(tmp_path), "a", exits.Exit(0, "n1", "", code, None, 0.0, float(code)))
    assert [record.code for record in exits.read(str(tmp_path), "a")] == [1, 2]


@pytest.mark.parametrize("write", [write_exit, write_launch_failure, write_verdict])
def test_no_record_makes_a_root_anew_that_is_gone(tmp_path: Path, write: Callable[[str], None]) -> None:
    """A root that was renamed away would be there again, empty, and the next attempt would begin at step 0."""
    state = tmp_path / "root/.hpk/job"
    with pytest.raises(FileNotFoundError):
        write(str(state))
    assert not list(tmp_path.iterdir())
    state.mkdir(parents=True)
    write(str(state))
    assert len(list(state.rglob("*.json"))) == 1


def test_a_torn_record_is_skipped(tmp_path: Path) -> None:
    exits.write(str(tmp_path), "a", exits.Exit(0, "n1", "", 0, None, 0.0, 1.0))
    (tmp_path / "exits" / "a" / "1.json").write_text('{"rank": 1, "no')
    (tmp_path / "exits" / "a" / "2.json").write_text(json.dumps({"rank": 2}))
    assert [record.rank for record in exits.read(str(tmp_path), "a")] == [0]


def test_srun_gets_the_attempt_even_where_nothing_is_exported() -> None:
    env = step_environment({"SLURM_EXPORT_ENV": "NONE", "SLURM_CPUS_PER_TASK": "4"}, {"HPK_ATTEMPT": "7.0.0"})
    assert env == {"SLURM_CPUS_PER_TASK": "4", "SRUN_CPUS_PER_TASK": "4", "HPK_ATTEMPT": "7.0.0"}


def test_users_arguments_come_after_ours_but_for_the_name_by_which_a_step_is_ended() -> None:
    options = ["--mpi=none", "--job-name=mine"]
    argv = StepPlan(["train"], "7.0.1", options, ["n1", "n2"], retry=True, hyperpod=True).argv()
    assert argv[:9] == [
        "srun",
        "--kill-on-bad-exit=1",
        "--overlap",
        "--auto-resume=1",
        "--nodes=2",
        "--nodelist=n[1-2]",
        "--mpi=none",
        "--job-name=mine",
        f"--job-name={step_name.PROCESS_PREFIX}7.0.1",
    ]
    assert argv[-2:] == ["--", "train"]


def test_of_several_launches_of_one_attempt_the_last_is_what_failed(tmp_path: Path) -> None:
    """HyperPod's step retry: rank 1 died with its node, the step was started again, and then rank 0 failed."""

    def ended(rank: int, signal: int, started: float, launch: str) -> exits.Exit:
        return exits.Exit(rank, "n1", "", None, signal, started, started + 5, launch=launch)

    for record in (ended(1, 9, 1.0, "0.4000"), ended(0, 15, 1.0, "0.4000"), ended(0, 11, 60.0, "0.4001")):
        exits.write(str(tmp_path), "a", record)
    assert [(one.rank, one.signal) for one in exits.last_launch(exits.read(str(tmp_path), "a"))] == [(0, 11)]
    assert exits.last_launch([]) == []
    # Where nothing tells launches apart, the last record of each rank counts.
    same = [ended(0, 15, 1.0, ""), ended(0, 11, 60.0, ""), ended(1, 9, 1.0, "")]
    assert {(one.rank, one.signal) for one in exits.last_launch(same)} == {(0, 11), (1, 9)}


@pytest.mark.parametrize("cgroups", ["6:freezer:/slurm/uid_1/job_7/step_0\n", "6:freezer:/\n"])
def test_the_command_hears_a_signal_of_its_task_where_slurm_tells_only_that(tmp_path: Path, cgroups: str) -> None:
    ready, heard = tmp_path / "ready", tmp_path / "heard"
    command = [
        "/bin/sh",
        "-c",
        f"trap 'touch {heard}' USR1; trap 'exit 9' TERM; touch {ready}; while :; do sleep .05; done",
    ]
    code = (
        "import os, sys; from hyperpod_kit.job.wrapper import rank; from hyperpod_kit.slurm import tracking\n"
        f"tracking.read_own_cgroup_text = lambda: {cgroups!r}\n"
        f"sys.exit(rank.run_rank({command!r}, os.environ))"
    )
    process = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "HPK_STATE": "", "HPK_ATTEMPT": ""})
    until(ready.exists, what="the command")
    process.send_signal(signal.SIGUSR1)
    if "slurm" in cgroups:
        until(heard.exists, what="the signal")
        process.send_signal(signal.SIGTERM)
    else:
        time.sleep(0.5)
        assert not heard.exists()
        os.kill(int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0]), signal.SIGTERM)
    assert process.wait(20) == 9
