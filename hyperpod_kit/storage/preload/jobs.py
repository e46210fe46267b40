"""The preload as a job of its own on CPU nodes, and the job with the GPUs behind it.

`afterok` with `--kill-on-invalid-dep=yes`: what waits for a preload that failed is cancelled, and no GPU was held.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import Optional, Sequence

from hyperpod_kit.job import submit
from hyperpod_kit.run import Runner
from hyperpod_kit.storage.preload.hsm import PreloadError
from hyperpod_kit.untrusted import by_descriptor

SECONDS = 60.0
_NUMBER = re.compile(r"^(\d+)(?:;\S*)?$", re.M)


@dataclass(frozen=True)
class SubmittedJobs:
    """The submitted jobs; `job` is None where only the preload was asked for."""

    preload: str
    job: Optional[str]


def build_preload_sbatch_argv(
    command: Sequence[str], partition: Optional[str], extra_options: Sequence[str]
) -> list[str]:
    """Build sbatch's words for the preload.

    `command`: the command to run there; `extra_options`: further words for sbatch.
    """
    partition_options = []
    if partition:
        partition_options.append(f"--partition={partition}")
    # Brought again after a node was lost: what is here already costs a look.
    options = ["--parsable", "--job-name=preload", "--nodes=1", "--ntasks=1", "--requeue", "--open-mode=append"]
    return ["sbatch", *options, *partition_options, *extra_options, f"--wrap=exec {shlex.join(command)}"]


def build_dependent_job_argv_and_script_copy(
    sbatch_args: Sequence[str], preload_job_id: str
) -> tuple[list[str], Optional[str]]:
    """Return sbatch's command line for the job that waits for the preload, and the copy of its script to remove.

    `sbatch_args`: what follows `sbatch` or `hyperpod-kit job submit`; --auto-resume among them counts. The copy
    is
    None where the script is submitted as it is. Raises UsageError.
    """
    line = submit.parse(sbatch_args)
    copy, requested_restarts = submit.copy_script_without_auto_resume(line)
    argv = submit.command(line, requested_restarts, copy)
    dependency_options = ["--parsable", f"--dependency=afterok:{preload_job_id}", "--kill-on-invalid-dep=yes"]
    argv = [argv[0], *dependency_options, *argv[1:]]
    if copy == line.script:
        return argv, None
    return argv, copy


def submit_jobs(runner: Runner, preload_sbatch_argv: Sequence[str], job_args: Sequence[str]) -> SubmittedJobs:
    """Submit both, or neither. Raises PreloadError, RunError, UsageError."""
    if job_args:
        submit.parse(job_args)
    preload = _parse_job_id(runner.run(preload_sbatch_argv, timeout=SECONDS).stdout)
    if not job_args:
        return SubmittedJobs(preload, None)
    copy = None
    try:
        argv, copy = build_dependent_job_argv_and_script_copy(job_args, preload)
        return SubmittedJobs(preload, _parse_job_id(runner.run(argv, timeout=SECONDS).stdout))
    except BaseException:
        # Nobody would read what it brings.
        runner.run(["scancel", preload], timeout=SECONDS, check=False)
        raise
    finally:
        if copy is not None:
            by_descriptor.unlink(copy)


def _parse_job_id(text: str) -> str:
    match = _NUMBER.search(text)
    if match is None:
        raise PreloadError(f"sbatch answered {text.strip()[:200]!r}, expected the job's number")
    return match[1]
