"""What a Slurm configuration lacks: each rule by one changed setting."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from pathlib import Path
from typing import Any, Sequence

import pytest

from hyperpod_kit.errors import RunError
from hyperpod_kit.job import cli
from hyperpod_kit.job.lint import doctor, doctor_look
from hyperpod_kit.job.program import cli_look
from hyperpod_kit.run import Completed
from hyperpod_kit.slurm import findings, running_config
from hyperpod_kit.slurm.findings import SlurmFinding
from hyperpod_kit.slurm.unanswered import Barrier, diagnose_slurm_command_failure
from tests.support.runner import RecordingRunner

GOOD = doctor_look.SlurmFacts(
    version=(22, 5),
    option=True,
    hyperpod=False,
    hooks={},
    config={
        "prologflags": "Alloc",
        "prologepilogtimeout": "60 sec",
        "requeueexithold": "86",
        "requeueexit": "",
        "schedulerparameters": "nohold_on_prolog_fail",
        "authinfo": "cred_expire=30",
        "jobrequeue": "1",
        "taskplugin": "task/affinity",
        "killwait": "30 sec",
    },
)


def changed(**settings: Any) -> doctor_look.SlurmFacts:
    facts = {
        key: settings.pop(key)
        for key in (
            "version",
            "option",
            "hyperpod",
            "hooks",
            "untold",
            "task_prologs",
            "containers",
            "nodes",
            "descriptors",
            "plugin_error",
            "guard",
            "unlaunched",
        )
        if key in settings
    }
    return dataclasses.replace(GOOD, config={**GOOD.config, **settings}, **facts)


def test_a_good_configuration_has_no_findings() -> None:
    assert (
        doctor.examine(changed(nodes=120, descriptors=1024)) == doctor.examine(changed(nodes=0, descriptors=64)) == []
    )
    assert doctor.examine(changed(nodes=9999, descriptors=-1)) == []  # no limit
    assert doctor.examine(GOOD) == []
    assert (
        doctor.examine(
            changed(
                hyperpod=True,
                taskplugin="task/none",
                schedulerparameters="permit_job_expansion,nohold_on_prolog_fail",
                prologflags="",
            )
        )
        == []
    )


CASES: list[tuple[str, doctor_look.SlurmFacts, str]] = [
    ("S001", changed(option=False), ""),
    ("S001", changed(option=False, plugin_error="spank: /a.so: Incompatible plugin version"), ""),
    ("S020", changed(guard=(SlurmFinding("munge-decode", "munged refuses its own", "restart it"),)), ""),
    ("S002", changed(hooks={"prolog": "is not set"}), "Prolog=/opt/hyperpod-kit/current/slurm/prolog.sh"),
    ("S003", changed(prologflags="X11"), "PrologFlags=X11,Alloc"),
    ("S004", changed(hooks={"epilog": "is not set"}), "Epilog=/opt/hyperpod-kit/current/slurm/epilog.sh"),
    ("S017", changed(jobcontainertype="job_container/tmpfs"), ""),
    ("S017", changed(namespacetype="namespace/tmpfs"), ""),
    ("S006", changed(prologepilogtimeout="65534"), "PrologEpilogTimeout=60"),
    ("S007", changed(requeueexithold="99"), "RequeueExitHold=99,86"),
    ("S008", changed(requeueexit="85"), ""),
    ("S009", changed(schedulerparameters="bf_continue"), "SchedulerParameters=bf_continue,nohold_on_prolog_fail"),
    ("S010", changed(version=(23, 2), maxbatchrequeue="0"), "MaxBatchRequeue=10"),
    ("S011", changed(authinfo=""), "AuthInfo=cred_expire=30"),
    ("S012", changed(jobrequeue="0"), "JobRequeue=1"),
    ("S022", changed(killwait="5 sec"), "KillWait=30"),
    (
        "S013",
        changed(
            hyperpod=True,
            taskplugin="task/cgroup",
            schedulerparameters="nohold_on_prolog_fail,permit_job_expansion",
            prologflags="",
        ),
        "TaskPlugin=task/none",
    ),
    (
        "S014",
        changed(hyperpod=True, taskplugin="task/none", prologflags=""),
        "SchedulerParameters=nohold_on_prolog_fail,permit_job_expansion",
    ),
    ("S015", changed(untold=("prolog",)), ""),
    ("S019", changed(nodes=125, descriptors=1024), ""),
    ("S021", changed(unlaunched=("11", "12_4")), ""),
    ("S021", changed(unlaunched=None), ""),
    (
        "S018",
        changed(
            hyperpod=True,
            taskplugin="task/none",
            schedulerparameters="permit_job_expansion,nohold_on_prolog_fail",
            prologflags="Alloc,X11",
        ),
        "",
    ),
    ("S016", changed(task_prologs=(f"{running_config.HOOKS}/task_prolog.sh",), containers=True), ""),
]


@pytest.mark.parametrize(("code", "facts", "line"), CASES, ids=[code for code, _, _ in CASES])
def test_a_rule_names_the_line_to_add(code: str, facts: doctor_look.SlurmFacts, line: str) -> None:
    [finding] = doctor.examine(facts)
    assert (finding.code, finding.line) == (code, line)
    assert finding.line or finding.hint


def test_a_task_prolog_of_ours_is_an_error_where_there_are_containers() -> None:
    ours = changed(task_prologs=("/etc/a.sh", f"{running_config.HOOKS}/task_prolog.sh"))
    assert [one.severity for one in doctor.examine(ours)] == ["warning"]
    assert [one.severity for one in doctor.examine(dataclasses.replace(ours, containers=True))] == ["error"]
    assert doctor.examine(changed(task_prologs=("/etc/a.sh",), containers=True)) == [], "somebody else's"


def test_every_rule_has_a_case() -> None:
    assert len(CASES) == len(doctor.RULES) + 5, (
        "of option_unknown, hyperpod_needs, memory_of_its_own, gate_comes_late and unlaunched_jobs_are_held there are "
        "two"
    )


def test_limits_of_a_newer_slurm_are_two_settings() -> None:
    found = doctor.examine(changed(version=(25, 5), maxbatchrequeue="5", prologtimeout="60 sec", epilogtimeout="65534"))
    assert [finding.line for finding in found] == ["EpilogTimeout=60"]


def test_a_newer_slurm_prints_two_limits_where_they_differ_and_one_where_they_do_not(tmp_path: Path) -> None:
    apart, alike = (examined(f"slurm-26.05.5{mark}", tmp_path / f"hooks{mark}") for mark in ("-apart", ""))
    assert running_config.hook_timeout_setting_names(apart[1].config) == ("prologtimeout", "epilogtimeout")
    assert running_config.hook_timeout_setting_names(alike[1].config) == ("prologepilogtimeout",)
    assert "S006" not in apart[0] + alike[0] and apart[1].untold == alike[1].untold == ()


def test_a_newer_slurm_has_a_delay_of_its_own() -> None:
    newer = {"version": (25, 11), "maxbatchrequeue": "5", "authinfo": "cred_expire=30"}
    wanted = "nohold_on_prolog_fail,requeue_delay={}"
    assert doctor.examine(changed(**newer)) == []
    [late] = doctor.examine(changed(**newer, schedulerparameters=wanted.format(90)))
    assert "waits 90 s" in late.message
    [unset] = doctor.examine(changed(**{**newer, "authinfo": ""}))
    assert "waits 120 s" in unset.message and unset.line == f"SchedulerParameters={wanted.format(30)}"
    assert doctor.examine(changed(**{**newer, "authinfo": ""}, schedulerparameters=wanted.format(5))) == []
    # An older one pays no heed to it.
    assert doctor.examine(changed(authinfo="", schedulerparameters=wanted.format(5)))


def test_a_hook_that_is_gone_or_somebody_elses(tmp_path: Path) -> None:
    ours = tmp_path / "prolog.sh"

    def problem(*configured: str) -> str:
        return doctor_look.hook_problem([*configured], "prolog.sh", str(tmp_path))

    assert problem() == "is not set"
    assert problem("/etc/other.sh") == "is /etc/other.sh"
    assert problem(str(ours)).endswith("does not exist")
    ours.write_text("#!/bin/bash\n")
    assert problem("/etc/a.sh", str(ours)).endswith("is not executable")
    os.chmod(ours, 0o755)
    assert problem("/etc/a.sh", str(ours)) == ""


PRINTED = Path(__file__).with_name("printed")
"""What `scontrol show config` printed on rehearsal clusters, whole. `-twice`: with /bin/true and /bin/ls as further
hooks (before 24.11 the last one counts); `-none`: without any line of ours in slurm.conf."""


def examined(name: str, place: Path) -> tuple[list[str], doctor_look.SlurmFacts]:
    """(codes, facts) of what a Slurm printed, on a node whose hooks lie in `place`."""
    place.mkdir(exist_ok=True)
    for _, file in running_config.HOOK_FILES:
        (place / file).write_text("#!/bin/bash\n")
        (place / file).chmod(0o755)
    text = (PRINTED / name).read_text().replace(f" {running_config.HOOKS}/prolog", f" {place}/prolog")
    text = text.replace(f" {running_config.HOOKS}/epilog", f" {place}/epilog")
    runner = RecordingRunner(
        {
            "scontrol show config": text,
            "sbatch --help": "--auto-resume",
            "srun --help": "--container-image=[USER@][REGISTRY#]IMAGE[:TAG]|PATH",
            "squeue job": "",
        }
    )
    facts = doctor_look.query_slurm_facts(runner, hook_directory=str(place), hyperpod_directory=str(place / "none"))
    return [finding.code for finding in doctor.examine(facts)], facts


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("slurm-20.11.4", (20, 11)),
        ("slurm-22.05.8", (22, 5)),
        ("slurm-24.11.5", (24, 11)),
        ("slurm-24.11.5-twice", (24, 11)),
        ("slurm-26.05.5", (26, 5)),
        ("slurm-26.05.5-twice", (26, 5)),
    ],
)
def test_a_whole_configuration_of_each_slurm(name: str, version: tuple[int, int], tmp_path: Path) -> None:
    codes, facts = examined(name, tmp_path / "hooks")
    # Up to 24.11 printed with the hooks of 0.4, where nobody had put another TaskProlog behind ours; all with a
    # KillWait of 3 or 5 s, which the rehearsal had then.
    assert (codes, facts.version, facts.untold) == (
        ["S022"] if "twice" in name or version > (24, 11) else ["S016", "S022"],
        version,
        (),
    )
    assert facts.containers


@pytest.mark.parametrize("name", ["slurm-22.05.8-none", "slurm-24.11.5-none", "slurm-26.05.5-none"])
def test_a_hook_that_is_not_set_is_missed_in_each_form(name: str, tmp_path: Path) -> None:
    codes, facts = examined(name, tmp_path / "hooks")
    assert {"S002", "S003", "S004", "S006"} <= set(codes) and facts.untold == ()
    assert facts.hooks == {"prolog": "is not set", "epilog": "is not set"} and facts.task_prologs == ()


def test_somebody_elses_hook_is_named_in_each_form(tmp_path: Path) -> None:
    assert examined("slurm-22.05.8-twice", tmp_path / "hooks")[1].hooks["epilog"] == "is /bin/ls"
    config = {"prolog[0]": "/bin/a", "prolog[1]": "/bin/b"}
    assert running_config.hook_programs_or_none_if_unknown_form(config, "prolog", (24, 11)) == ["/bin/a", "/bin/b"]
    # Where one hook is a list, another without a line is not set; TaskProlog has always had its line.
    assert running_config.hook_programs_or_none_if_unknown_form(config, "epilog", (26, 5)) == []
    assert running_config.hook_programs_or_none_if_unknown_form(config, "taskprolog", (26, 5)) is None


def test_what_a_slurm_prints_in_no_known_form_is_not_called_missing(tmp_path: Path) -> None:
    text = (PRINTED / "slurm-24.11.5").read_text().replace("24.11.5", "29.02.0").replace("Prolog[0]", "PrologList")
    text = text.replace("Epilog[0]", "EpilogList").replace("PrologFlags", "PrologOptions")
    runner = RecordingRunner({"scontrol show config": text.replace("PrologEpilogTimeout", "HookTimeout")})
    facts = doctor_look.query_slurm_facts(
        runner, hook_directory=str(tmp_path), hyperpod_directory=str(tmp_path / "none")
    )
    found = doctor.examine(facts)
    assert not {"S002", "S003", "S004", "S006"} & {finding.code for finding in found}
    [said] = [finding for finding in found if finding.code == "S015"]
    assert (
        said.severity == "warning"
        and "29.02 prints prologflags, prologepilogtimeout, prolog, epilog in " in said.message
    )


NO_MUNGE = (
    """\
scontrol: error: If munged is up, restart with --num-threads=10
scontrol: error: Munge encode failed: Failed to access "/run/munge/munge.socket.2": No such file or directory
"""
    """(Did you start munged?)
slurm_load_ctl_conf error: Protocol authentication error
"""
)


@pytest.mark.parametrize(
    ("stderr", "message", "hint"),
    [
        (
            NO_MUNGE,
            "munged does not run on this node (/run/munge/munge.socket.2: No such file or directory)",
            "sudo systemctl start munge",
        ),
        (
            NO_MUNGE.replace("Failed to access", "Failed to connect to").replace(
                "No such file or directory", "Connection refused"
            ),
            "munged does not run on this node (/run/munge/munge.socket.2: Connection refused)",
            "sudo systemctl start munge",
        ),
        ("slurm_load_ctl_conf error: Protocol authentication error\n", "of the controller do not agree", "munge.key"),
        (
            "slurm_load_ctl_conf error: Unable to contact slurm controller (connect failure)\n",
            "connect failure",
            "systemctl status slurmctld",
        ),
        # What a node with another munge.key gets: nobody is to look at slurmctld's unit for it.
        ("slurm_load_ctl_conf error: Zero Bytes were transmitted or received\n", "munge.key or clock", "sha256sum"),
    ],
)
def test_a_slurm_that_does_not_answer(stderr: str, message: str, hint: str) -> None:
    why = diagnose_slurm_command_failure(RunError(["scontrol", "show", "config"], 1, "", stderr)).to_unreachable_error()
    assert message in why.message and hint in (why.hint or "") and why.exit_code == 3


def test_another_key_is_told_from_a_controller_that_is_away() -> None:
    def barrier(stderr: str, returncode: int = 1) -> Barrier:
        return diagnose_slurm_command_failure(RunError(["scontrol"], returncode, "", stderr)).barrier

    assert barrier(NO_MUNGE) is Barrier.NO_MUNGED
    assert barrier("slurm_load_node error: Zero Bytes were transmitted or received") is Barrier.CREDENTIAL
    assert barrier("slurm_load_node error: Protocol authentication error") is Barrier.CREDENTIAL
    assert barrier("slurm_load_node error: Unable to contact slurm controller (connect failure)") is Barrier.CONTROLLER
    assert barrier("", 127) is Barrier.NO_PROGRAM


NOT_LOADED = """\
sbatch: plugin_load_from_file: Incompatible Slurm plugin /opt/hyperpod-kit/spank/auto_resume.so version (25.11.0)
sbatch: error: spank: /opt/hyperpod-kit/spank/auto_resume.so: Incompatible plugin version
sbatch: error: spank: /opt/other.so: Dlopen of plugin file failed
"""


def test_a_plugin_of_another_slurm_is_told_from_one_that_nobody_asked_for(tmp_path: Path) -> None:
    runner = RecordingRunner({"scontrol show config": (PRINTED / "slurm-22.05.8").read_text()})
    runner.answers["sbatch --help"] = Completed(("sbatch",), 0, "Parallel run options:\n", NOT_LOADED)
    facts = doctor_look.query_slurm_facts(
        runner, hook_directory=str(tmp_path), hyperpod_directory=str(tmp_path), guard_record=str(tmp_path / "r")
    )
    [finding] = [one for one in doctor.examine(facts) if one.code == "S001"]
    assert "Incompatible Slurm plugin" in finding.message and "version (25.11.0)" in finding.message
    assert "not in plugstack.conf" not in finding.message and finding.severity == "error"


def test_the_doctor_reads_what_the_guard_of_its_node_has_seen(tmp_path: Path) -> None:
    def seen(record: findings.GuardRecord | None) -> list[str]:
        path = tmp_path / "slurm.json"
        path.unlink(missing_ok=True)
        if record is not None:
            path.write_text(json.dumps(record.to_dict()))
        runner = RecordingRunner({"scontrol show config": (PRINTED / "slurm-22.05.8").read_text()})
        facts = doctor_look.query_slurm_facts(
            runner, hook_directory=str(tmp_path), hyperpod_directory=str(tmp_path), guard_record=str(path)
        )
        return [f"{one.severity} {one.message}" for one in doctor.examine(facts) if one.code == "S020"]

    munge = SlurmFinding("munge-decode", "munged refuses its own", "restart it")
    assert seen(None) == []
    assert seen(findings.GuardRecord(time.time(), (munge,))) == ["error munge-decode: munged refuses its own"]
    [old] = seen(findings.GuardRecord(time.time() - 2 * findings.SILENT_AFTER, ()))
    assert old.startswith("warning guard-silent: unknown whether Slurm is healthy on this node")


JOBS = """\
JobId=4 JobState=RUNNING Requeue=1 BatchFlag=1 BatchHost=n1 NodeList=n[1-3]
JobId=5 JobState=RUNNING Requeue=1 BatchFlag=1 BatchHost=n1 NodeList=n[2-3]
JobId=6 JobState=RUNNING Requeue=0 BatchFlag=1 BatchHost=n1 NodeList=n2
JobId=8 ArrayJobId=7 ArrayTaskId=3 JobState=RUNNING Requeue=1 BatchFlag=1 BatchHost=n9 NodeList=n2
JobId=9 JobState=PENDING Requeue=1 BatchFlag=1 NodeList=(null)
JobId=10 JobState=RUNNING Requeue=1 BatchFlag=0 NodeList=n2
"""


def test_orphans_are_put_back_and_nobody_else(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runner = RecordingRunner(
        {"squeue job": JOBS, "squeue --version": "slurm 22.05.8", "squeue --steps": "", "scontrol requeue": ""}
    )
    monkeypatch.setattr(cli_look, "LocalRunner", lambda: runner)
    assert cli.main(["sweep", "--dry-run"]) == 0
    assert "job 5 runs without its batch host n1: would be requeued" in capsys.readouterr().out
    assert not [call for call in runner.calls if "requeue" in call]
    assert cli.main(["sweep"]) == 1, "one cannot be requeued"
    assert [call for call in runner.calls if "requeue" in call] == ["scontrol requeue 5", "scontrol requeue 7_3"]
    assert "job 6 runs without its batch host n1: it was submitted with --no-requeue" in capsys.readouterr().out
    assert [one.job_id for one in cli_look.find_orphans(cli_look.jobs(runner))[0]] == ["5", "6", "7_3"]


STEPS = "4.batch n1\n4.0 n[1-2]\n5.batch n1\n7_3.batch n9\n11.batch n4\n12.batch n5\n14.0 n2\n"
NOW = 1_800_000_000
AFTER_A_RESTART = """\
JobId=4 JobState=RUNNING Requeue=1 BatchFlag=1 BatchHost=n1 NodeList=n[1-3] Restarts=0 StartTime=1799990000
JobId=5 JobState=RUNNING Requeue=1 BatchFlag=1 BatchHost=n2 NodeList=n[2-3] Restarts=0 UserId=1001 StartTime=1799990000
JobId=8 ArrayJobId=7 ArrayTaskId=3 JobState=RUNNING Requeue=0 BatchFlag=1 BatchHost=n2 NodeList=n2 Restarts=0 \
StartTime=1799990000
JobId=11 JobState=RUNNING Requeue=1 BatchFlag=1 BatchHost=n2 NodeList=n2 Restarts=1 StartTime=1799990000
JobId=12 JobState=PENDING Requeue=1 BatchFlag=1 NodeList=(null) Restarts=1
JobId=13 JobState=RUNNING Requeue=1 BatchFlag=1 BatchHost=n2 NodeList=n2 Restarts=0 StartTime=1799999900
JobId=14 JobState=RUNNING Requeue=1 BatchFlag=1 BatchHost=n2 NodeList=n2 Restarts=0 StartTime=1799990000
JobId=15 JobState=RUNNING Requeue=1 BatchFlag=0 BatchHost= NodeList=n2 Restarts=0 StartTime=1799990000
"""


def without_script(version: str, *listings: str, steps: Sequence[str] = (STEPS, STEPS)) -> list[tuple[str, str]]:
    """(job, nodes) of those that are found; `listings` and `steps`: what squeue prints, time after time."""
    jobs_printed, steps_printed = iter(listings), iter(steps)
    runner = RecordingRunner(
        {
            "squeue --version": f"slurm {version}\n",
            "squeue job": lambda argv: next(jobs_printed),
            "squeue --steps": lambda argv: next(steps_printed),
        }
    )
    found, unknown = cli_look.find_jobs_without_script(runner, cli_look.jobs(runner), NOW)
    assert unknown == []
    return [(orphan.job_id, orphan.host) for orphan in found]


def test_a_restarted_slurmctld_names_another_batch_host_and_the_batch_step_tells() -> None:
    """5 and 7_3: it is on a node that was lost (22.05). 14: there is none (24.11). 11 was queued again meanwhile, 13
    has just begun, 15 has no script."""
    later = AFTER_A_RESTART.replace("NodeList=n2 Restarts=1", "NodeList=n4 Restarts=2")
    found = [("5", "n[2-3]"), ("7_3", "n2"), ("14", "n2")]
    assert without_script("24.11.5", AFTER_A_RESTART, later) == found
    steps = (STEPS, STEPS + "14.batch n2\n")
    assert without_script("24.11.5", AFTER_A_RESTART, later, steps=steps) == found[:2]
    assert without_script("20.11.4", AFTER_A_RESTART) == [], "nobody has seen what that one lists"


def test_steps_that_are_not_listed_are_a_problem_and_no_orphan() -> None:
    runner = RecordingRunner(
        {
            "squeue --version": "slurm 24.11.5\n",
            "squeue job": AFTER_A_RESTART,
            "squeue --steps": (1, "Socket timed out"),
        }
    )
    found, [problem] = cli_look.find_jobs_without_script(runner, cli_look.jobs(runner), NOW)
    assert found == [] and "Socket timed out" in problem
