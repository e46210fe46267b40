"""Rules of `job lint` and `job submit`: about a submission that makes many jobs or a job of many parts, about places
that only one machine has, and about a requeue that only some versions of Slurm know."""

from __future__ import annotations

import re
from typing import Iterator, Set

from hyperpod_kit.environment import HPK_CHECKPOINT_ROOT
from hyperpod_kit.job.lint.lint_finding import LintFinding
from hyperpod_kit.job.lint.script import HET, Command, Script

NODE_LOCAL = ("/tmp", "/dev/shm", "/var/tmp", "/run", "/opt/dlami/nvme", "/opt/sagemaker")
"""Places that do not survive the replacement of a node, or that other nodes do not see."""

SHORT_FORM_OF_S3 = "/mount-s3"
"""Where the short form `bucketname` mounts its bucket."""

_PER_TASK = ("SLURM_ARRAY_TASK_ID", "SLURM_JOB_ID", "SLURM_JOBID")
"""Variables that have another value in each task of an array."""

_ROOT = re.compile(rf"(?:--checkpoint-root[= ]|\b{HPK_CHECKPOINT_ROOT}=)(\"[^\"]*\"|'[^']*'|\S+)")


def root(command: Command) -> str:
    """Return the checkpoint root that this command names, as it is written, "" when it names none."""
    match = _ROOT.search(command.text)
    if match is None:
        return ""
    return match.group(1).strip("\"'")


def tasks_share_a_root(script: Script) -> Iterator[LintFinding]:
    """Find a checkpoint root that all tasks of an array would use: only one of them gets it."""
    option = script.option("--array")
    if option is None or option.value in ("", "0"):
        return
    differ = _names_that_differ(script)
    for command in script.commands:
        root_path = root(command)
        if not root_path:
            continue
        names_variable = any(re.search(rf"\$\{{?!?{name}\b", root_path) for name in differ)
        if not names_variable and "$(" not in root_path:
            yield LintFinding(
                "J020",
                "error",
                command.line,
                f"every task of --array={option.value} gets the checkpoint root {root_path}: the first task to start "
                "owns it, and all others are refused",
                "End it with the task's number: --checkpoint-root …/run-$SLURM_ARRAY_TASK_ID",
            )


def _names_that_differ(script: Script) -> Set[str]:
    """Return the variables that have another value in each task, as far as the script shows."""
    names = set(_PER_TASK)
    for _ in range(3):
        for command in script.commands:
            for name, value in re.findall(r"(?:^|[;&\s])(?:export\s+)?([A-Za-z_]\w*)=(\S+|\"[^\"]*\")", command.text):
                names_variable = any(re.search(rf"\b{variable}\b", value) for variable in names)
                if names_variable or "$(" in value or "`" in value:
                    names.add(name)
    return names


def tasks_share_a_log(script: Script) -> Iterator[LintFinding]:
    """Find a log that tasks of an array share with one another, or with another job."""
    array = script.option("--array")
    for option in (script.option("--output"), script.option("--error")):
        if array is None or option is None:
            continue
        if not re.search(r"%\d*[ajJ]", option.value):
            yield LintFinding(
                "J021",
                "warning",
                option.line,
                f"{option.name}={option.value}: all tasks of --array={array.value} write into one log",
                f"Use {option.name}=%x-%A_%a.out",
            )
        elif not re.search(r"%\d*a", option.value):
            yield LintFinding(
                "J022",
                "warning",
                option.line,
                f"{option.name}={option.value}: %j is a separate number per task, which squeue and `job status` do "
                "not show, and which is reused after slurmctld has lost its state: the output is then appended to "
                "the log of another job",
                f"Use {option.name}=%x-%A_%a.out",
            )


def find_spare_nodes_of_het_job(script: Script) -> Iterator[LintFinding]:
    """Find a request for spare nodes, which a heterogeneous job does not have."""
    if not any(option.name in HET for option in script.options):
        return
    for command in script.commands:
        if re.search(r"\bjob\s+run\b.*\s--nodes[= ]\d", command.text.split(" -- ")[0]):
            yield LintFinding(
                "J023",
                "error",
                command.line,
                "--nodes requests spare nodes, which a heterogeneous job does not have: `job run` refuses it",
                "Leave out --nodes, or submit a homogeneous job",
            )


def local_directory(script: Script) -> Iterator[LintFinding]:
    """Find a working directory and logs that only one machine has."""
    option = script.option("--chdir")
    if option and _local(option.value):
        yield LintFinding(
            "J024",
            "error",
            option.line,
            f"--chdir={option.value} is local to one machine: on a node without it the job FAILS with exit code 0:53 "
            "before its first line, and writes no log",
            "Use a directory that all nodes share",
        )
    for log in (script.option("--output"), script.option("--error")):
        if log and _local(log.value) and not log.value.startswith("/dev/null"):
            yield LintFinding(
                "J025",
                "warning",
                log.line,
                f"{log.name}={log.value}: the log stays on the disk of the node that runs the script",
                "Write it to a file system that all nodes share",
            )


def find_expedited_requeue(script: Script) -> Iterator[LintFinding]:
    """Find --requeue=expedite, which few clusters accept and which holds a job that failed."""
    option = script.option("--requeue")
    if option and option.value == "expedite":
        yield LintFinding(
            "J026",
            "warning",
            option.line,
            "--requeue=expedite: sbatch refuses it before Slurm 25.11 and without "
            "SlurmctldParameters=enable_expedited_requeue; with it, a job that ends with a nonzero code is held, "
            "even if the sweep would have requeued it",
            "Use --requeue: `job run` requeues the job itself",
        )


def read_only_root(script: Script) -> Iterator[LintFinding]:
    """Find a checkpoint root in a bucket that is mounted read-only."""
    for command in script.commands:
        root_path = root(command)
        if root_path == SHORT_FORM_OF_S3 or root_path.startswith(SHORT_FORM_OF_S3 + "/"):
            yield LintFinding(
                "J029",
                "warning",
                command.line,
                f"{root_path} is where `bucketname` of provisioning_parameters.json mounts a bucket, read-only: no "
                "checkpoint can be written there",
                "Use --checkpoint-root s3://BUCKET/PREFIX, or a mountpoint-s3 mount with read_only false",
            )


def _local(path: str) -> bool:
    return any(path == directory or path.startswith(directory + "/") for directory in NODE_LOCAL)


def find_submission_problems(script: Script) -> Iterator[LintFinding]:
    """Yield the findings of all rules here."""
    for rule in (
        tasks_share_a_root,
        tasks_share_a_log,
        find_spare_nodes_of_het_job,
        local_directory,
        find_expedited_requeue,
        read_only_root,
    ):
        yield from rule(script)
