"""Gathers the facts for `job doctor`: the configuration of the running Slurm, in whatever form its version prints it.

A setting that is printed in no form known here is `untold`, which is not the same as not set.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Dict, List, Optional, Tuple

from hyperpod_kit import descriptors
from hyperpod_kit.errors import RunError
from hyperpod_kit.run import Runner
from hyperpod_kit.slurm import control, findings, hyperpod, records, versions
from hyperpod_kit.slurm.findings import SlurmFinding
from hyperpod_kit.slurm.job_id import JobId
from hyperpod_kit.slurm.plugin_load import probe_plugin_load
from hyperpod_kit.slurm.running_config import (
    HOOK_FILES,
    HOOKS,
    hook_programs_or_none_if_unknown_form,
    hook_timeout_setting_names,
    parse_show_config,
    version_of,
)
from hyperpod_kit.slurm.unanswered import diagnose_slurm_command_failure
from hyperpod_kit.slurm.versions import Version

PRINTED = ("prologflags", "requeueexithold", "schedulerparameters", "authinfo", "taskplugin")
"""Settings that every version of Slurm known here prints, set or not; a setting that is not printed is not judged."""


LAUNCH_FAILED_HELD = "launch failed requeued held"
"""Slurm's reason for a job whose batch script a node could not start (seen with 22.05 and a full spool directory)."""


@dataclass(frozen=True)
class SlurmFacts:
    """The facts about the running Slurm. `config`: `scontrol show config`, keys in lower case.

    option: whether sbatch knows --auto-resume, None when that could not be found out; hyperpod: whether this is a node
    of HyperPod; hooks: setting -> what is wrong; untold: settings that this Slurm prints in no form known here;
    task_prologs: programs; containers: whether srun knows --container-image (pyxis); nodes: how many there are, 0 when
    slurmctld did not say; descriptors: how many a process may open here at most; plugin_error: Slurm's own words about
    our plugin, where it left it out; guard: what the guard of this node has found, nothing where there is none;
    unlaunched: jobs that Slurm holds because a node could not start their batch scripts, None when squeue did not say.
    """

    version: Version
    config: Dict[str, str]
    option: Optional[bool]
    hyperpod: bool
    hooks: Dict[str, str]
    untold: Tuple[str, ...] = ()
    task_prologs: Tuple[str, ...] = ()
    containers: bool = False
    nodes: int = 0
    descriptors: int = 0
    plugin_error: str = ""
    guard: Tuple[SlurmFinding, ...] = ()
    unlaunched: Optional[Tuple[str, ...]] = ()


def query_slurm_facts(
    runner: Runner,
    *,
    hook_directory: str = HOOKS,
    hyperpod_directory: str = hyperpod.NODE_DIRECTORY,
    guard_record: str = findings.RECORD,
) -> SlurmFacts:
    """Return what the running Slurm and the guard of this node report.

    Raises Unreachable when Slurm does not answer, with the reason why it cannot be reached.
    """
    try:
        done = runner.run(["scontrol", "show", "config"], timeout=control.DEADLINE)
    except RunError as err:
        raise diagnose_slurm_command_failure(err).to_unreachable_error() from err
    config = parse_show_config(done.stdout)
    number = version_of(config)
    wrong: Dict[str, str] = {}
    printed = [*PRINTED, *hook_timeout_setting_names(config)]
    if number >= versions.MAX_BATCH_REQUEUE:
        printed.append("maxbatchrequeue")
    untold = [key for key in printed if key not in config]
    for key, name in HOOK_FILES:
        hook_programs = hook_programs_or_none_if_unknown_form(config, key, number)
        if hook_programs is None:
            untold.append(key)
        else:
            wrong[key] = hook_problem(hook_programs, name, hook_directory)
    plugin = probe_plugin_load(runner)
    return SlurmFacts(
        number,
        config,
        plugin.offers,
        os.path.isdir(hyperpod_directory),
        {key: problem for key, problem in wrong.items() if problem},
        tuple(untold),
        tuple(hook_programs_or_none_if_unknown_form(config, "taskprolog", number) or ()),
        control.has_option(runner, "srun", "--container-image") is True,
        _nodes(runner),
        descriptors.hard_limit(),
        plugin.error,
        _guard(guard_record),
        _query_unlaunched_jobs(runner),
    )


def _guard(record: str) -> Tuple[SlurmFinding, ...]:
    """Return what the guard of this node has found; nothing where there is no record, as without the kit's units."""
    if not os.path.exists(record):
        return ()
    return tuple(findings.findings_or_guard_silent(findings.read_guard_record(record), time.time()))


def _query_unlaunched_jobs(runner: Runner) -> Optional[Tuple[str, ...]]:
    """Return the jobs that are held with Slurm's reason `launch failed requeued held`; None when squeue fails."""
    try:
        job_records = records.query_squeue(runner)
        return tuple(
            JobId.from_record(job).slurm_id
            for job in job_records
            if job.get("JobState") == "PENDING" and _words(job.get("Reason", "")) == LAUNCH_FAILED_HELD
        )
    except (RunError, ValueError):
        return None


def _words(reason: str) -> str:
    """Return a job's reason without Slurm's underscores: some commands print them, some do not."""
    return reason.replace("_", " ").strip().lower()


def _nodes(runner: Runner) -> int:
    """Return the number of nodes, 0 when slurmctld does not say."""
    try:
        return len(control.query_nodes(runner))
    except (RunError, ValueError):
        return 0


def hook_problem(configured: List[str], name: str, hook_directory: str) -> str:
    """Return what is wrong with one hook as this machine sees it, "" when nothing is."""
    kit_hook_path = os.path.join(hook_directory, name)
    if not configured:
        return "is not set"
    if kit_hook_path not in configured:
        return f"is {', '.join(configured)}"
    if not os.path.isfile(kit_hook_path):
        return f"{kit_hook_path} does not exist"
    if not os.access(kit_hook_path, os.X_OK):
        return f"{kit_hook_path} is not executable"
    return ""
