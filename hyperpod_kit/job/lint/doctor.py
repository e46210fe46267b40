"""`job doctor`: finds what the running Slurm's configuration lacks for jobs that come back, with the line to add.

doctor_look.py gathers SlurmFacts; the pure rules here judge them. Sources: man slurm.conf, prolog_epilog.html, and
measurements with the versions of Slurm in docs/slurm-versions.md.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Callable, Iterator, List, Optional, Tuple

from hyperpod_kit.job.lint.doctor_look import SlurmFacts
from hyperpod_kit.job.step.step_machine import KILL_PATIENCE, STOP_GRACE
from hyperpod_kit.slurm import findings, versions
from hyperpod_kit.slurm.running_config import HOOKS, hook_timeout_setting_names


@dataclass(frozen=True)
class DoctorFinding:
    """One thing that is to be mended.

    severity: `error` (jobs do not come back, or do so for ever), `warning` (they come back later, or with more loss
    than must be). line: the line for slurm.conf, "" when something else is to be done, which `hint` says.
    """

    code: str
    severity: str
    message: str
    line: str = ""
    hint: str = ""

    def render(self) -> str:
        """Return the finding and its remedy, a line each."""
        remedy = self.hint
        if self.line:
            remedy = f"add to slurm.conf: {self.line}"
        return f"{self.severity} {self.code}: {self.message}\n    {remedy}"


def examine(facts: SlurmFacts) -> List[DoctorFinding]:
    """Return all findings, errors first."""
    doctor_findings = [finding for rule in RULES for finding in rule(facts)]
    return sorted(doctor_findings, key=lambda finding: (finding.severity != "error", finding.code))


def _comma_list_in_lower_case(facts: SlurmFacts, key: str) -> List[str]:
    return [word.strip().lower() for word in facts.config.get(key, "").split(",") if word.strip()]


def _setting_with_word_appended(facts: SlurmFacts, key: str, word: str) -> str:
    """Return the comma list of a setting with `word` behind the others."""
    return ",".join([*(given for given in facts.config.get(key, "").split(",") if given), word])


def _seconds(text: str) -> Optional[int]:
    match = re.match(r"(\d+)", text)
    if match is None:
        return None
    return int(match.group(1))


def not_printed(facts: SlurmFacts) -> Iterator[DoctorFinding]:
    """Name the settings that this Slurm prints in no known form: they are not judged."""
    if facts.untold:
        number, names = versions.format_version(facts.version), ", ".join(facts.untold)
        yield DoctorFinding(
            "S015",
            "warning",
            f"not judged: Slurm {number} prints {names} in a form that this version cannot read",
            hint=f"check by hand: grep -iE '^({'|'.join(facts.untold)})' /opt/slurm/etc/slurm.conf",
        )


def find_missing_auto_resume_option(facts: SlurmFacts) -> Iterator[DoctorFinding]:
    """Find a plugin that is not installed or that this Slurm does not load."""
    if facts.plugin_error:
        yield DoctorFinding(
            "S001",
            "error",
            f"the plugin is in plugstack.conf, but this Slurm does not load it: {facts.plugin_error}: --auto-resume "
            "is unknown, and a bare srun gets no checkpoint to resume from",
            hint="on this node: sudo hyperpod-kit node slurm --mend, which builds it for this node's Slurm",
        )
    elif facts.option is False:
        yield DoctorFinding(
            "S001",
            "warning",
            "sbatch has no option --auto-resume: the plugin is not in plugstack.conf",
            hint="`hyperpod-kit job submit` takes the same line; the plugin: `hyperpod-kit node apply`",
        )


def no_mount_gate(facts: SlurmFacts) -> Iterator[DoctorFinding]:
    """Find a missing Prolog of ours, which keeps jobs from nodes without their mounts."""
    if "prolog" in facts.hooks:
        yield DoctorFinding(
            "S002",
            "error",
            f"Prolog {facts.hooks['prolog']}: a job may start on a node without its mounts",
            f"Prolog={HOOKS}/prolog.sh",
        )


def find_wrong_prolog_flags(facts: SlurmFacts) -> Iterator[DoctorFinding]:
    """Find PrologFlags without Alloc, and on HyperPod those with Alloc or Contain."""
    flags = _comma_list_in_lower_case(facts, "prologflags")
    early = any(flag in ("alloc", "contain") for flag in flags)
    if facts.hyperpod and early:
        yield DoctorFinding(
            "S018",
            "error",
            f"PrologFlags is {facts.config['prologflags']}: a node that HyperPod gives to a running job gets no Prolog "
            "by it, so the retried step fails there and the node is drained (Prolog error)",
            hint="take Alloc and Contain out of PrologFlags in slurm.conf: the gate then comes with the first step",
        )
    elif "prologflags" in facts.config and not facts.hyperpod and not early:
        yield DoctorFinding(
            "S003",
            "error",
            "PrologFlags lacks Alloc: nodes on which no first step runs are not checked",
            f"PrologFlags={_setting_with_word_appended(facts, 'prologflags', 'Alloc')}",
        )


def find_missing_epilog_flush(facts: SlurmFacts) -> Iterator[DoctorFinding]:
    """Find a missing Epilog of ours, which saves what a dead job left in shared memory."""
    if "epilog" in facts.hooks:
        yield DoctorFinding(
            "S004",
            "error",
            f"Epilog {facts.hooks['epilog']}: the captures of a dead job in shared memory are lost",
            f"Epilog={HOOKS}/epilog.sh",
        )


def find_private_tmpfs_of_jobs(facts: SlurmFacts) -> Iterator[DoctorFinding]:
    """Find a plugin that may give each job a /dev/shm of its own."""
    for key, name in (("jobcontainertype", "JobContainerType"), ("namespacetype", "NamespaceType")):
        if facts.config.get(key, "").endswith("/tmpfs"):
            yield DoctorFinding(
                "S017",
                "warning",
                f"{name} is {facts.config[key]}: if it gives jobs a private /dev/shm, their captures there are lost "
                "with the job, before any Epilog runs",
                hint="leave /dev/shm out of Dirs= in job_container.conf (namespace.yaml)",
            )


def hooks_without_deadline(facts: SlurmFacts) -> Iterator[DoctorFinding]:
    """Find hooks that may run without end."""
    for key in hook_timeout_setting_names(facts.config):
        if key in facts.config and _seconds(facts.config[key]) in (None, 65534):
            name = key.replace("prolog", "Prolog").replace("epilog", "Epilog").replace("timeout", "Timeout")
            yield DoctorFinding("S006", "error", f"{name} is unlimited: a hook that hangs blocks slurmd", f"{name}=60")


def find_exit_86_not_held(facts: SlurmFacts) -> Iterator[DoctorFinding]:
    """Find a RequeueExitHold without 86, the exit code of a job that gave up."""
    if "requeueexithold" not in facts.config:
        return
    configured_codes = [code for code in re.split(r"[,\s]+", facts.config["requeueexithold"]) if code]
    if "86" not in configured_codes:
        yield DoctorFinding(
            "S007",
            "warning",
            "RequeueExitHold lacks 86: a job that gave up ends and is not held",
            f"RequeueExitHold={','.join([*configured_codes, '86'])}",
        )


def find_endless_requeue_exit(facts: SlurmFacts) -> Iterator[DoctorFinding]:
    """Find RequeueExit, which requeues without a limit."""
    if facts.config.get("requeueexit"):
        yield DoctorFinding(
            "S008",
            "error",
            f"RequeueExit is {facts.config['requeueexit']}: such a job is requeued endlessly",
            hint="take RequeueExit out of slurm.conf",
        )


def held_after_prolog(facts: SlurmFacts) -> Iterator[DoctorFinding]:
    """Find a scheduler that holds a job whose node fails the mount gate."""
    if "schedulerparameters" in facts.config and "nohold_on_prolog_fail" not in _comma_list_in_lower_case(
        facts, "schedulerparameters"
    ):
        yield DoctorFinding(
            "S009",
            "warning",
            "a job whose node fails the mount gate is held until a person releases it",
            f"SchedulerParameters={_setting_with_word_appended(facts, 'schedulerparameters', 'nohold_on_prolog_fail')}",
        )


def unbounded_requeue(facts: SlurmFacts) -> Iterator[DoctorFinding]:
    """Find a missing limit of requeues after launch failures, where this Slurm has one."""
    if (
        facts.version >= versions.MAX_BATCH_REQUEUE
        and "maxbatchrequeue" in facts.config
        and _seconds(facts.config["maxbatchrequeue"]) in (None, 0)
    ):
        yield DoctorFinding(
            "S010",
            "warning",
            "MaxBatchRequeue is not set: launch failures are requeued endlessly",
            "MaxBatchRequeue=10",
        )


def late_requeue(facts: SlurmFacts) -> Iterator[DoctorFinding]:
    """Find a long wait of requeued jobs: for requeue_delay, where this Slurm has it, else for cred_expire."""
    seconds = _requeue_wait_seconds(facts)
    if "authinfo" in facts.config and seconds > 30:
        line = "AuthInfo=cred_expire=30"
        if facts.version >= versions.REQUEUE_DELAY:
            parameters = _setting_with_word_appended(facts, "schedulerparameters", "requeue_delay=30")
            line = f"SchedulerParameters={parameters}"
        yield DoctorFinding("S011", "warning", f"a requeued job waits {seconds} s before it may start", line)


def _requeue_wait_seconds(facts: SlurmFacts) -> int:
    setting_match = None
    if facts.version >= versions.REQUEUE_DELAY:
        setting_match = re.search(r"\brequeue_delay=(\d+)", facts.config.get("schedulerparameters", ""))
    if setting_match is None:
        setting_match = re.search(r"\bcred_expire=(\d+)", facts.config.get("authinfo", ""))
    if setting_match is None:
        return versions.CRED_EXPIRE
    return int(setting_match.group(1))


def never_requeued(facts: SlurmFacts) -> Iterator[DoctorFinding]:
    """Find JobRequeue=0."""
    if facts.config.get("jobrequeue") == "0":
        yield DoctorFinding(
            "S012", "warning", "JobRequeue=0: a job submitted without --requeue is lost with its node", "JobRequeue=1"
        )


def short_kill_wait(facts: SlurmFacts) -> Iterator[DoctorFinding]:
    """Find a KillWait that is shorter than what `job run` takes to end hung ranks and to record the end."""
    seconds = _seconds(facts.config.get("killwait", ""))
    needed = int(STOP_GRACE + KILL_PATIENCE)
    if seconds is not None and seconds < needed:
        yield DoctorFinding(
            "S022",
            "warning",
            f"KillWait is {seconds} s and `job run` takes up to {needed} s to end the ranks of a cancelled job: Slurm "
            "may kill it before it records the end, and --requeue-after-cancel then has no effect",
            "KillWait=30",
        )


def hyperpod_needs(facts: SlurmFacts) -> Iterator[DoctorFinding]:
    """Find what HyperPod's own auto-resume lacks on a HyperPod cluster."""
    if not facts.hyperpod:
        return
    plugins = _comma_list_in_lower_case(facts, "taskplugin")
    if plugins not in ([], ["task/none"]):
        yield DoctorFinding(
            "S013",
            "error",
            f"TaskPlugin is {facts.config['taskplugin']}: HyperPod's auto-resume needs task/none",
            "TaskPlugin=task/none",
        )
    if "schedulerparameters" in facts.config and "permit_job_expansion" not in _comma_list_in_lower_case(
        facts, "schedulerparameters"
    ):
        yield DoctorFinding(
            "S014",
            "error",
            "HyperPod cannot give a job a new node in place of a lost one",
            f"SchedulerParameters={_setting_with_word_appended(facts, 'schedulerparameters', 'permit_job_expansion')}",
        )


def find_kit_task_prolog_set(facts: SlurmFacts) -> Iterator[DoctorFinding]:
    """Find a TaskProlog of ours: the plugin does its work now, outside of the container; builds before 0.1.0 set the
    hook."""
    kit_task_prologs = [program for program in facts.task_prologs if program.startswith(f"{HOOKS}/")]
    hint = "take it out of slurm.conf (on the controller: hyperpod-kit node apply), then: scontrol reconfigure"
    if kit_task_prologs and facts.containers:
        yield DoctorFinding(
            "S016",
            "error",
            f"TaskProlog is {kit_task_prologs[0]}: pyxis runs it inside the container, where it may not exist, so "
            "every task with --container-image fails, for every user",
            hint=hint,
        )
    elif kit_task_prologs:
        yield DoctorFinding(
            "S016",
            "warning",
            f"TaskProlog is {kit_task_prologs[0]}: once pyxis is installed, every task in a container may fail",
            hint=hint,
        )


MOST_JOBS_SHOWN = 20
"""Jobs that a finding names."""

RANKS = 8
"""Ranks on a node: most nodes have so many GPUs."""

_BESIDE = 64
"""Descriptors of an agent that do not belong to its peers."""


def few_descriptors(facts: SlurmFacts) -> Iterator[DoctorFinding]:
    """Find a limit of descriptors that is too low for the agent of rank 0 of a job on all nodes."""
    needed = facts.nodes * RANKS + _BESIDE
    if 0 < facts.descriptors < needed:
        yield DoctorFinding(
            "S019",
            "warning",
            f"a process on this node may open {facts.descriptors} descriptors (hard limit): the agent of rank 0 needs "
            f"one for each other rank, {needed} for {RANKS} ranks on each of {facts.nodes} nodes; otherwise such a "
            "job does not start",
            hint=f"LimitNOFILE={max(65536, needed)} in slurmd's unit on each node; there: prlimit --nofile -p "
            "$(pgrep -o slurmd)",
        )


def guard_has_seen(facts: SlurmFacts) -> Iterator[DoctorFinding]:
    """Report what this node's guard has found, which slurmctld shows to no user: about munge, slurmd and state, and
    what the guard has put back."""
    for finding in facts.guard:
        if finding.fault or finding.code == findings.SILENT:
            severity = "warning"
            if finding.fault:
                severity = "error"
            yield DoctorFinding("S020", severity, f"{finding.code}: {finding.detail}", hint=finding.remedy)


def unlaunched_jobs_are_held(facts: SlurmFacts) -> Iterator[DoctorFinding]:
    """Find jobs that Slurm holds, until somebody releases them, because a node could not start their batch scripts."""
    if facts.unlaunched is None:
        yield DoctorFinding(
            "S021",
            "warning",
            "squeue does not list the jobs, so it is unknown whether Slurm holds any after a failed launch",
            hint="squeue --states=all",
        )
    elif facts.unlaunched:
        jobs = " ".join(facts.unlaunched[:MOST_JOBS_SHOWN])
        rest = len(facts.unlaunched) - MOST_JOBS_SHOWN
        if rest > 0:
            jobs += f" and {rest} more"
        yield DoctorFinding(
            "S021",
            "error",
            f"held because a node could not start the batch script: {jobs}",
            hint="slurmctld's log names the node, whose slurmd's log has the reason (a full disk, a user that is not "
            f"known there); drain the node, then: scontrol release {' '.join(facts.unlaunched[:MOST_JOBS_SHOWN])}",
        )


RULES: Tuple[Callable[[SlurmFacts], Iterator[DoctorFinding]], ...] = (
    find_missing_auto_resume_option,
    no_mount_gate,
    find_wrong_prolog_flags,
    find_missing_epilog_flush,
    find_private_tmpfs_of_jobs,
    hooks_without_deadline,
    find_exit_86_not_held,
    find_endless_requeue_exit,
    held_after_prolog,
    unbounded_requeue,
    late_requeue,
    never_requeued,
    short_kill_wait,
    hyperpod_needs,
    not_printed,
    find_kit_task_prolog_set,
    few_descriptors,
    guard_has_seen,
    unlaunched_jobs_are_held,
)
