"""`job run` on the command line: its options, and the run that they ask for.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import argparse
import os
import shlex
from typing import TYPE_CHECKING, List, Optional, Sequence

from hyperpod_kit.environment import HPK_ATTEMPT, HPK_RESUME_FROM
from hyperpod_kit.errors import UsageError
from hyperpod_kit.job.decide.budget import RetryPolicy
from hyperpod_kit.run import LocalRunner

if TYPE_CHECKING:
    from hyperpod_kit.job.step.hang import StallRule
    from hyperpod_kit.job.step.options import RunOptions

_POLICY = RetryPolicy()


def add_arguments(run: argparse.ArgumentParser) -> None:
    """Add the options of `job run`, in the order of its help."""
    _add_root_arguments(run)
    _add_budget_arguments(run)
    _add_step_arguments(run)
    _add_resume_arguments(run)
    _add_srun_arguments(run)
    _add_hidden_arguments(run)


def _add_root_arguments(run: argparse.ArgumentParser) -> None:
    run.add_argument(
        "--checkpoint-root",
        required=True,
        metavar="ROOT",
        help="a directory on a file system that all nodes share, also of Mountpoint for S3; or s3://BUCKET/PREFIX",
    )
    run.add_argument(
        "--state",
        default="",
        metavar="DIR",
        help="with a root in S3: a directory that all nodes share, for our records of it (default: below HOME or where "
        "the job was submitted, whichever is on a shared file system)",
    )


def _add_budget_arguments(run: argparse.ArgumentParser) -> None:
    run.add_argument(
        "--max-restarts",
        type=int,
        metavar="N",
        help=f"failures allowed without a newer valid checkpoint (default {_POLICY.max_restarts})",
    )
    run.add_argument(
        "--max-requeues",
        type=int,
        default=_POLICY.max_requeues,
        metavar="N",
        help="runs of the batch script in total (default %(default)s)",
    )


def _add_step_arguments(run: argparse.ArgumentParser) -> None:
    run.add_argument(
        "--nodes",
        type=int,
        default=0,
        metavar="N",
        help="nodes that a step uses; the rest of the allocation is spare (default: all)",
    )
    run.add_argument(
        "--stall",
        metavar="LIMIT",
        help="end the ranks when none of them completes a step: auto[:FACTOR[:SECONDS]], after FACTOR (10) times the "
        "slowest of the last 100 steps and SECONDS (300) at least; or SECONDS, which also ends a program that reports "
        "no steps, after so long without output or a save; or never (default auto; never where a person is at a "
        "terminal)",
    )
    run.add_argument(
        "--grace",
        type=float,
        default=90.0,
        metavar="SECONDS",
        help="seconds that the step has to save after SIGUSR1 (default %(default)g)",
    )


def _add_resume_arguments(run: argparse.ArgumentParser) -> None:
    run.add_argument(
        "--from",
        dest="rewind_to",
        default="",
        metavar="ATTEMPT",
        help="go back to this checkpoint, once; what is newer is left for good (default: the newest that is whole)",
    )
    run.add_argument(
        "--fresh",
        action="store_true",
        help="start at step 0, once, where checkpoints were committed and none can be restored (default: hold the job)",
    )
    run.add_argument(
        "--prove",
        choices=("structure", "bytes"),
        default="structure",
        help="what is looked at before the ranks start: the files of a checkpoint, or every byte (default %(default)s)",
    )
    run.add_argument(
        "--flush-wait",
        type=float,
        default=1800.0,
        metavar="SECONDS",
        help="wait so long for nodes that still bring captures of the run before to storage (default %(default)g)",
    )


def _add_srun_arguments(run: argparse.ArgumentParser) -> None:
    run.add_argument("--srun-args", action="append", default=[], metavar="ARGS", help="more arguments for srun")
    run.add_argument(
        "--container-python",
        default="",
        metavar="PATH",
        help="the image's Python, for --container-image in --srun-args (default: the first in sight)",
    )


def _add_hidden_arguments(run: argparse.ArgumentParser) -> None:
    for name, value in (
        ("probe-interval", 5.0),
        ("silent-after", 6.0),
        ("refused-after", 30.0),
        ("backoff", _POLICY.backoff),
        ("storage-wait", 600.0),
        ("controller-wait", 2400.0),
    ):
        run.add_argument(f"--{name}", type=float, default=value, help=argparse.SUPPRESS)


def main(args: argparse.Namespace, command: List[str]) -> int:
    """Run the job; return the exit code of the batch script. Raises HyperpodKitError."""
    from hyperpod_kit.job.base.report import JobReport
    from hyperpod_kit.job.run.series import JobSeries
    from hyperpod_kit.job.run.supervisor import JobSupervisor

    if not command:
        raise UsageError("no command given", hint="hyperpod-kit job run --checkpoint-root DIR -- python train.py")
    resume_from = os.environ.get(HPK_RESUME_FROM)
    # With an attempt, both were inherited from the job that submitted this one.
    if resume_from and not os.environ.get(HPK_ATTEMPT):
        raise UsageError(
            f"{HPK_RESUME_FROM}={resume_from} is set, and `job run` tells the ranks where they begin",
            hint=f"unset {HPK_RESUME_FROM}; to go back to a checkpoint: hyperpod-kit job run --from ATTEMPT",
        )
    options = run_options_of(args, command)
    with JobSeries(options.state, os.environ) as series:
        return JobSupervisor(options, os.environ, runner=LocalRunner(), report=JobReport(event_listener=series)).run()


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
    )


def _stall_rule_never_by_default_if_interactive(option: Optional[str], srun_args: Sequence[str]) -> StallRule:
    """Return the rule of `--stall`; without it `auto`, but `never` where a person is at a terminal.

    That person may be in a debugger, or away until the next morning, and can end what hangs. Raises UsageError.
    """
    from hyperpod_kit.job.step import hang

    is_interactive = os.isatty(0) or any("--pty" in srun_options.split() for srun_options in srun_args)
    if option is None and is_interactive:
        return hang.NEVER
    return hang.StallRule.parse(option or "auto")
