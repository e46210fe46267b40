"""Launches that never begin: no checkpoint is blamed, the cause and its remedy are said, and there is an end soon."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import List

import pytest

from hyperpod_kit.errors import GaveUp
from hyperpod_kit.job.base import launch_failure
from hyperpod_kit.job.base.launch_failure import LaunchFailure
from hyperpod_kit.job.step import launch_probe, srun_step
from tests.unit.job.conftest import Job
from tests.unit.job.toy_trainer import commit_checkpoint


def committed(job: Job) -> List[str]:
    job.root.mkdir()
    return [commit_checkpoint(str(job.root), 1, seq, 10 * seq) for seq in (1, 2)]


def blamed_nothing(job: Job, newest: str) -> None:
    attempts = job.said("attempt")
    assert {attempt["from"] for attempt in attempts} == {newest}
    assert all(attempt["rejected"] == [] for attempt in attempts)
    assert {event["class"] for event in job.said("ended")} == {"launch_failed"}


def every_wrapper_speaks(job: Job) -> None:
    """srun ends none of them, because of another, before it could say what it lacks."""
    job.environment["FAKE_SRUN_WAITS"] = "1"


def test_a_command_that_no_node_has_is_named_and_not_tried_on(job: Job) -> None:
    _, newest = committed(job)
    every_wrapper_speaks(job)
    with pytest.raises(GaveUp) as caught:
        job.run(command=["no-such-torchrun", "train.py"])
    blamed_nothing(job, newest)
    assert len(job.said("attempt")) == 1
    assert "no-such-torchrun: No such file or directory (n" in caught.value.message
    assert "every node has the same problem" in caught.value.message
    assert caught.value.exit_code == 86 and "command -v no-such-torchrun" in str(caught.value.hint)
    advice = job.said("launch_failed")[0]
    assert set(advice["nodes"]) <= {"n1", "n2"} and "no checkpoint is at fault" in advice["message"]


def test_a_shell_that_does_not_find_its_command_is_one_too(job: Job) -> None:
    _, newest = committed(job)
    every_wrapper_speaks(job)
    with pytest.raises(GaveUp) as caught:
        job.run(command=["/bin/sh", "-c", "no-such-torchrun train.py"])
    blamed_nothing(job, newest)
    assert len(job.said("attempt")) == 1 and len(job.said("launch_failed")) == 1
    assert "127: not found" in str(caught.value.hint)


def test_a_command_that_one_node_lacks_is_tried_three_times(job: Job) -> None:
    _, newest = committed(job)
    with pytest.raises(GaveUp) as caught:
        job.run(command=["/bin/sh", "-c", '[ "$SLURM_PROCID" = 1 ] || exec sleep 60; exec no-such-torchrun'])
    blamed_nothing(job, newest)
    assert len(job.said("attempt")) == 3
    assert "3 launches in a row failed" in caught.value.message and "n2" in caught.value.message


def test_a_node_that_gets_the_command_meanwhile_goes_on_where_the_job_was(job: Job) -> None:
    committed(job)
    program = job.base / "train"
    real = f"exec {sys.executable} {Path(__file__).with_name('toy_trainer.py')} --steps 25 --pause 0.01"
    script = f'if [ "$SLURM_PROCID" = 0 ]; then touch {job.base}/tried; [ -e {program} ] || exec sleep 60; fi; '
    script += f"if [ ! -e {program} ]; then while [ ! -e {job.base}/tried ]; do sleep 0.01; done; touch {program}; "
    script += f"exec {job.base}/absent; fi; {real}"
    assert job.run(command=["/bin/sh", "-c", script]) == 0
    assert [event["class"] for event in job.said("ended")] == ["launch_failed", "done"]
    assert job.started_at() == [20, 20]


def test_a_wrapper_that_is_not_there_is_no_crash_of_a_checkpoint(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was with a bundle that a replaced node had never had."""
    _, newest = committed(job)
    absent = "/opt/hyperpod-kit/0123456789abcdef/lib/hyperpod_kit/job/__main__.py"
    monkeypatch.setattr(srun_step, "path_of_kit_main_on_nodes", lambda: absent)
    with pytest.raises(GaveUp) as caught:
        job.run("--steps", "30")
    blamed_nothing(job, newest)
    assert f"{absent}: No such file or directory (n1, n2)" in caught.value.message
    assert "hyperpod-kit diff" in str(caught.value.hint)


def test_an_srun_that_refuses_is_asked_three_times(job: Job) -> None:
    _, newest = committed(job)
    srun = job.base / "srun"
    srun.write_text(f'#!/bin/sh\necho x >>{job.base}/asked\necho "srun: error: Unable to create step" >&2\nexit 1\n')
    srun.chmod(0o755)
    with pytest.raises(GaveUp) as caught:
        job.run("--steps", "30", srun=str(srun))
    blamed_nothing(job, newest)
    assert len(job.said("attempt")) == 3
    assert "srun exited 1 before any rank began" in caught.value.message


def test_without_auto_resume_the_command_s_own_code_is_the_job_s(job: Job) -> None:
    job.environment = {**job.environment, "HPK_AUTO_RESUME": "0"}
    assert job.run(command=["no-such-torchrun"]) == 127
    assert "command -v no-such-torchrun" in job.said("launch_failed")[0]["message"]


def test_records_are_read_as_they_were_written_and_nothing_else(tmp_path: Path) -> None:
    mine = LaunchFailure("n1", "torchrun", "No such file or directory", "6818")
    launch_failure.write(str(tmp_path), "7.0.0", 0, mine)
    folder = Path(launch_failure.directory(str(tmp_path), "7.0.0"))
    (folder / "1.json").write_text('{"node": "n2", "program": 7, "reason": "x", "launch": ""}')
    (folder / "2.json").write_text('{"node": "n2", "prog')
    assert launch_failure.read(str(tmp_path), "7.0.0") == [mine]
    assert launch_failure.read(str(tmp_path), "7.0.0", "6819") == []
    assert launch_failure.read(str(tmp_path), "../7.0.0") == launch_failure.read(str(tmp_path), "8.0.0") == []


def test_what_a_probed_node_says_counts_and_nothing_else() -> None:
    printed = "hello from a prolog\nhpk-launch-probe n2 absent /opt/a b\nhpk-launch-probe n2 absent /usr/bin/python3\n"
    printed += "hpk-launch-probe n9 absent /x\nhpk-launch-probe n1 odd /x\nhpk-launch-probe n1 forbidden /y\n"
    assert launch_probe.parse_first_absence_per_node(printed, ["n1", "n2"]) == [
        LaunchFailure("n1", "/y", "Permission denied"),
        LaunchFailure("n2", "/opt/a b", "No such file or directory"),
    ]


def test_many_nodes_of_one_cause_are_not_all_listed() -> None:
    failures = [LaunchFailure(f"n{number}", "x", "y") for number in range(9)]
    assert launch_failure.causes(failures) == "x: y (n0, n1, n2 and 6 more)"
