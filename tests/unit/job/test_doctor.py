"""What a Slurm configuration lacks: each rule by one changed setting."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import pytest

from hyperpod_kit.job import cli, cli_look, doctor, sweep
from tests.unit.slurm.recording import RecordingRunner

GOOD = doctor.Facts(
    version=(22, 5), option=True, hyperpod=False, hooks={},
    config={"prologflags": "Alloc", "prologepilogtimeout": "60 sec", "requeueexithold": "86", "requeueexit": "",
            "schedulerparameters": "nohold_on_prolog_fail", "authinfo": "cred_expire=30", "jobrequeue": "1",
            "taskplugin": "task/affinity"})


def changed(**settings: Any) -> doctor.Facts:
    facts = {key: settings.pop(key) for key in ("version", "option", "hyperpod", "hooks") if key in settings}
    return dataclasses.replace(GOOD, config={**GOOD.config, **settings}, **facts)


def test_a_good_configuration_has_no_findings() -> None:
    assert doctor.examine(GOOD) == []
    assert doctor.examine(changed(hyperpod=True, taskplugin="task/none",
                                  schedulerparameters="permit_job_expansion,nohold_on_prolog_fail")) == []


CASES: list[tuple[str, doctor.Facts, str]] = [
    ("S001", changed(option=False), ""),
    ("S002", changed(hooks={"prolog": "is not set"}), "Prolog=/opt/hyperpod-kit/current/slurm/prolog.sh"),
    ("S003", changed(prologflags="X11"), "PrologFlags=X11,Alloc"),
    ("S004", changed(hooks={"epilog": "is not set"}), "Epilog=/opt/hyperpod-kit/current/slurm/epilog.sh"),
    ("S005", changed(hooks={"taskprolog": "is not set"}), "TaskProlog=/opt/hyperpod-kit/current/slurm/task_prolog.sh"),
    ("S006", changed(prologepilogtimeout="65534"), "PrologEpilogTimeout=60"),
    ("S007", changed(requeueexithold="99"), "RequeueExitHold=99,86"),
    ("S008", changed(requeueexit="85"), ""),
    ("S009", changed(schedulerparameters="bf_continue"), "SchedulerParameters=bf_continue,nohold_on_prolog_fail"),
    ("S010", changed(version=(23, 2)), "MaxBatchRequeue=10"),
    ("S011", changed(authinfo=""), "AuthInfo=cred_expire=30"),
    ("S012", changed(jobrequeue="0"), "JobRequeue=1"),
    ("S013", changed(hyperpod=True, taskplugin="task/cgroup", schedulerparameters="nohold_on_prolog_fail,"
                     "permit_job_expansion"), "TaskPlugin=task/none"),
    ("S014", changed(hyperpod=True, taskplugin="task/none"),
     "SchedulerParameters=nohold_on_prolog_fail,permit_job_expansion"),
]


@pytest.mark.parametrize(("code", "facts", "line"), CASES, ids=[code for code, _, _ in CASES])
def test_a_rule_names_the_line_to_add(code: str, facts: doctor.Facts, line: str) -> None:
    [finding] = doctor.examine(facts)
    assert (finding.code, finding.line) == (code, line)
    assert finding.line or finding.hint


def test_every_rule_has_a_case() -> None:
    assert len(CASES) == len(doctor.RULES) + 1, "hyperpod_needs has two"


def test_limits_of_a_newer_slurm_are_two_settings() -> None:
    found = doctor.examine(changed(version=(25, 5), maxbatchrequeue="5", prologtimeout="60 sec", epilogtimeout="65534"))
    assert [finding.line for finding in found] == ["EpilogTimeout=60"]


def test_a_hook_that_is_gone_or_somebody_elses(tmp_path: Path) -> None:
    ours = tmp_path / "prolog.sh"
    assert doctor.hook_problem("", "prolog.sh", str(tmp_path)) == "is not set"
    assert doctor.hook_problem("/etc/other.sh", "prolog.sh", str(tmp_path)) == "is /etc/other.sh"
    assert doctor.hook_problem(str(ours), "prolog.sh", str(tmp_path)).endswith("is not there")
    ours.write_text("#!/bin/bash\n")
    assert doctor.hook_problem(f"/etc/a.sh,{ours}", "prolog.sh", str(tmp_path)).endswith("is not executable")
    os.chmod(ours, 0o755)
    assert doctor.hook_problem(f"/etc/a.sh,{ours}", "prolog.sh", str(tmp_path)) == ""


def test_what_scontrol_prints_is_read() -> None:
    text = ("Configuration data as of 2026-11-21T10:00:00\nAuthInfo                = (null)\n"
            "PrologFlags             = Alloc,Contain\nSLURM_VERSION           = 22.05.8\n")
    config = doctor.parse(text)
    assert (config["authinfo"], config["prologflags"]) == ("", "Alloc,Contain")
    assert doctor.version(config["slurm_version"]) == (22, 5) and doctor.version("unknown") == (0, 0)


JOBS = """\
JobId=4 JobState=RUNNING Requeue=1 BatchFlag=1 BatchHost=n1 NodeList=n[1-3]
JobId=5 JobState=RUNNING Requeue=1 BatchFlag=1 BatchHost=n1 NodeList=n[2-3]
JobId=6 JobState=RUNNING Requeue=0 BatchFlag=1 BatchHost=n1 NodeList=n2
JobId=8 ArrayJobId=7 ArrayTaskId=3 JobState=RUNNING Requeue=1 BatchFlag=1 BatchHost=n9 NodeList=n2
JobId=9 JobState=PENDING Requeue=1 BatchFlag=1 NodeList=(null)
JobId=10 JobState=RUNNING Requeue=1 BatchFlag=0 NodeList=n2
"""


def test_orphans_are_put_back_and_nobody_else(monkeypatch: pytest.MonkeyPatch,
                                              capsys: pytest.CaptureFixture[str]) -> None:
    runner = RecordingRunner({"scontrol -o show job": JOBS, "scontrol requeue": ""})
    monkeypatch.setattr(cli_look, "LocalRunner", lambda: runner)
    assert cli.main(["sweep", "--dry-run"]) == 0
    assert "job 5 runs without its batch host n1: would be requeued" in capsys.readouterr().out
    assert not [call for call in runner.calls if "requeue" in call]
    assert cli.main(["sweep"]) == 1, "one cannot be requeued"
    assert [call for call in runner.calls if "requeue" in call] == ["scontrol requeue 5", "scontrol requeue 7_3"]
    assert "job 6 runs without its batch host n1: it was submitted with --no-requeue" in capsys.readouterr().out
    assert [one.job_id for one in sweep.orphans(sweep.jobs(runner))] == ["5", "6", "7_3"]
