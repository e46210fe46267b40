"""`job run` on the command line: its options, and the run that they ask for.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import argparse
import gc
import os
import pwd
import shlex
import shutil
from typing import TYPE_CHECKING, Optional, Sequence

from hyperpod_kit.command_line.specs import CommandSpec, OptionSpec
from hyperpod_kit.environment import HPK_ATTEMPT, HPK_RESUME_FROM
from hyperpod_kit.errors import JobError, UsageError
from hyperpod_kit.job.decide.retry_policy import RetryPolicy

if TYPE_CHECKING:
    from hyperpod_kit.job.step.hang import StallRule
    from hyperpod_kit.job.step.options import RunOptions

_POLICY = RetryPolicy()

_STDERR = 2


def _hidden(flag: str, seconds: float) -> OptionSpec:
    return OptionSpec(flag, "", "SECONDS", float, default=seconds, is_hidden=True)


RUN = CommandSpec(
    "run",
    "Run training in a batch script or on one machine: choose a checkpoint, launch the ranks, retry on failure.",
    "hyperpod_kit.job.run.command:main",
    usage="--checkpoint-root ROOT [OPTIONS] -- COMMAND...",
    options=(
        OptionSpec(
            "--checkpoint-root",
            "Checkpoint directory on a shared file system (also Mountpoint for S3), or s3://BUCKET/PREFIX.",
            "ROOT",
            is_required=True,
        ),
        OptionSpec(
            "--local",
            "Run the command on this machine without Slurm (use torchrun for several ranks). It is restarted where "
            "Slurm would requeue the job; Ctrl-C, TERM and USR1 make it save and end.",
        ),
        OptionSpec("--json-lines", "Write the log lines of `job run` as JSON objects."),
        OptionSpec(
            "--state",
            "For a root in S3: shared directory for the job's records; default: below HOME or the submission "
            "directory, whichever is on a shared file system.",
            "DIR",
            default="",
        ),
        OptionSpec(
            "--max-restarts",
            f"Failures allowed without a newer valid checkpoint; default: {_POLICY.max_restarts}.",
            "N",
            int,
        ),
        OptionSpec(
            "--max-requeues",
            "Maximum runs of the batch script in total; default: {default}.",
            "N",
            int,
            default=_POLICY.max_requeues,
        ),
        OptionSpec(
            "--nodes", "Nodes to use; the others of the allocation are spares. Default: all.", "N", int, default=0
        ),
        OptionSpec(
            "--stall",
            "End the ranks when none of them completes a step. auto[:FACTOR[:SECONDS]]: after FACTOR (10) times "
            "the slowest of the last 100 steps, and at least SECONDS (300). SECONDS: after this time; also ends a "
            "program that reports no steps and writes no output or checkpoint. never: do not end them. Default: "
            "auto, or never on a terminal.",
            "LIMIT",
        ),
        OptionSpec(
            "--grace",
            "Seconds to save after SIGUSR1; default: {default}.",
            "SECONDS",
            float,
            default=90.0,
        ),
        OptionSpec(
            "--from",
            "Resume from this checkpoint, once; newer ones are ignored for good. Default: the newest valid one.",
            "CHECKPOINT",
            default="",
            dest="rewind_to",
        ),
        OptionSpec(
            "--fresh",
            "Start at step 0, once, if no checkpoint can be restored; default: hold the job.",
        ),
        OptionSpec(
            "--prove",
            "Verify the files of a checkpoint, or every byte, before the ranks start; default: {default}.",
            default="structure",
            choices=("structure", "bytes"),
        ),
        OptionSpec(
            "--flush-wait",
            "Seconds to wait for nodes that still save captures of the previous run; default: {default}.",
            "SECONDS",
            float,
            default=1800.0,
        ),
        OptionSpec(
            "--requeue-after-cancel",
            "Run the job again if this user (root: HyperPod's hang rules) cancels it while no rank makes progress. "
            "Default: a cancelled job has ended.",
            "USER",
        ),
        OptionSpec("--srun-args", "Additional arguments for srun.", "ARGS", is_repeated=True),
        OptionSpec(
            "--container-python",
            "Python in the image of --container-image in --srun-args; default: the first one found.",
            "PATH",
            default="",
        ),
        _hidden("--probe-interval", 5.0),
        _hidden("--silent-after", 6.0),
        _hidden("--refused-after", 30.0),
        _hidden("--backoff", _POLICY.backoff),
        _hidden("--storage-wait", 600.0),
        _hidden("--controller-wait", 2400.0),
    ),
    examples=(
        "--checkpoint-root /fsx/$USER/run1 -- python train.py",
        "--local --checkpoint-root /tmp/run1 -- torchrun --nproc-per-node 2 train.py",
        "--checkpoint-root /fsx/$USER/run1 --nodes 8 -- python train.py  # with 9 allocated, one is a spare",
        "--checkpoint-root /fsx/$USER/run1 --stall auto:10:1800 -- python train.py  # at least 30 min",
    ),
)


def main(args: argparse.Namespace) -> int:
    """Run the job of `args.command` and return the exit code of the batch script. Raises HyperpodKitError."""
    if not args.command:
        raise UsageError("no command given", hint="hyperpod-kit job run --checkpoint-root DIR -- python train.py")
    resume_from = os.environ.get(HPK_RESUME_FROM)
    # With an attempt, both were inherited from the job that submitted this one.
    if resume_from and not os.environ.get(HPK_ATTEMPT):
        raise UsageError(
            f"{HPK_RESUME_FROM}={resume_from} is set, but `job run` chooses the checkpoint of the ranks",
            hint=f"unset {HPK_RESUME_FROM}; to go back to a checkpoint: hyperpod-kit job run --from ATTEMPT",
        )
    if args.local:
        return _run_on_this_machine(args)
    if os.environ.get("SLURM_JOB_ID") and shutil.which("squeue") is None:
        raise JobError(
            "SLURM_JOB_ID is set, but squeue is not in PATH: Slurm cannot be queried about this job",
            hint="without Slurm: hyperpod-kit job run --local",
        )
    _import_supervisor_without_collections()
    from hyperpod_kit.job.base.report import JobReport
    from hyperpod_kit.job.run.series import JobSeries
    from hyperpod_kit.job.run.supervisor import JobSupervisor
    from hyperpod_kit.job.step.scheduler import SlurmScheduler
    from hyperpod_kit.run import LocalRunner

    options = run_options_of(args, args.command)
    with JobSeries(options.state, os.environ) as series:
        report = JobReport(event_listener=series, is_json=args.json_lines)
        return JobSupervisor(options, os.environ, scheduler=SlurmScheduler(LocalRunner()), report=report).run()


def _run_on_this_machine(args: argparse.Namespace) -> int:
    """Run the job without Slurm and return its exit code. Raises HyperpodKitError."""
    for flag, value in (("--nodes", args.nodes), ("--srun-args", args.srun_args)):
        if value:
            raise UsageError(f"{flag} with --local: the job has one machine, and no srun", hint=f"leave {flag} away")
    if args.requeue_after_cancel:
        flag = "--requeue-after-cancel"
        raise UsageError(f"{flag} with --local: without Slurm, no user cancels the job", hint=f"leave {flag} away")
    _import_supervisor_without_collections()
    from hyperpod_kit.job.base.report import JobReport
    from hyperpod_kit.job.run.supervisor import JobSupervisor
    from hyperpod_kit.job.step.local_machine import LocalMachine, environment_outside_of_slurm
    from hyperpod_kit.run import LocalRunner

    report = JobReport(_STDERR, is_json=args.json_lines)
    env = environment_outside_of_slurm(os.environ)
    options = run_options_of(args, args.command)
    return JobSupervisor(options, env, scheduler=LocalMachine(LocalRunner()), report=report).run()


def _import_supervisor_without_collections() -> None:
    """Import what supervises a job. What an import makes stays: the garbage collector would free nothing of it."""
    gc.disable()
    import hyperpod_kit.job.run.supervisor  # noqa: F401

    gc.freeze()
    gc.enable()


def run_options_of(args: argparse.Namespace, command: Sequence[str]) -> RunOptions:
    """Return the options of a run from the command line. Raises UsageError, JobError."""
    from hyperpod_kit.job.records import state_place
    from hyperpod_kit.job.step.options import RunOptions

    root = state_place.absolute(args.checkpoint_root)
    return RunOptions(
        root=root,
        state_directory=state_place.chosen(root, args.state, os.environ),
        command=tuple(command),
        policy=RetryPolicy(max_requeues=args.max_requeues, backoff=args.backoff),
        max_restarts=args.max_restarts,
        nodes=args.nodes,
        srun_args=tuple(word for text in args.srun_args for word in shlex.split(text)),
        container_python=args.container_python,
        stall=_stall_rule_never_by_default_if_interactive(args.stall, args.srun_args),
        grace=args.grace,
        storage_wait=args.storage_wait,
        flush_wait=args.flush_wait,
        controller_wait=args.controller_wait,
        probe_interval=args.probe_interval,
        silent_after=args.silent_after,
        refused_after=args.refused_after,
        prove_bytes=args.prove == "bytes",
        rewind_to=args.rewind_to,
        fresh=args.fresh,
        requeue_after_cancel=_uid_of_user(args.requeue_after_cancel),
    )


def _uid_of_user(name: Optional[str]) -> Optional[int]:
    """Return the uid of `--requeue-after-cancel`, None without it. Raises UsageError."""
    if name is None:
        return None
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        raise UsageError(
            f"--requeue-after-cancel {name}: this machine has no such user", hint="root, for HyperPod's hang rules"
        ) from None


def _stall_rule_never_by_default_if_interactive(option: Optional[str], srun_args: Sequence[str]) -> StallRule:
    """Return the rule of `--stall`; without it `auto`, but `never` where a person is at a terminal.

    That person may be in a debugger, or away until the next morning, and can end what hangs. Raises UsageError.
    """
    from hyperpod_kit.job.step import hang

    is_interactive = os.isatty(0) or any("--pty" in srun_options.split() for srun_options in srun_args)
    if option is None and is_interactive:
        return hang.NEVER
    return hang.StallRule.parse(option or "auto")
