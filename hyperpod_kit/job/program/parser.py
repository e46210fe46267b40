"""The command line of `hyperpod-kit job`: a parser for each of its commands.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import argparse
import math
from typing import Any, Optional, Protocol

from hyperpod_kit.job.run import command as run_command

_JSON_HELP = "data on standard output"


class AddCommand(Protocol):
    """A function that adds the parser of one command."""

    def __call__(
        self, name: str, help: str, *examples: str, usage: Optional[str] = None
    ) -> argparse.ArgumentParser: ...


class _Price(argparse.Action):
    """Parses `--price`, an amount of US dollars that may be given once."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, _: Any = None
    ) -> None:
        if getattr(namespace, self.dest) is not None:
            parser.error("--price is given twice")
        try:
            price = float(values)
        except ValueError:
            price = math.nan
        if not 0 <= price < math.inf:
            parser.error(f"--price is {values!r}, expected dollars such as 2.50")
        setattr(namespace, self.dest, price)


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands that people type."""
    parser = argparse.ArgumentParser(prog="hyperpod-kit job", description="Run a job that comes back by itself.")
    commands = parser.add_subparsers(dest="verb", required=True, metavar="COMMAND")

    def add_command(name: str, help: str, *examples: str, usage: Optional[str] = None) -> argparse.ArgumentParser:
        lines = (f"hyperpod-kit job {line}" for line in examples)
        return commands.add_parser(
            name,
            help=help,
            description=help[0].upper() + help[1:] + ".",
            usage=usage,
            epilog="\n  ".join(["Examples:", *lines]),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    _add_run(add_command)
    _add_status(add_command)
    _add_goodput(add_command)
    _add_lint_and_doctor(add_command)
    _add_sweep_and_submit(add_command)
    _add_rewind(add_command)
    _add_prove(add_command)
    add_command("task-prolog", "for slurm/task_prolog.sh: one checkpoint for all ranks of a bare srun", "task-prolog")
    return parser


def _add_run(add_command: AddCommand) -> None:
    run = add_command(
        "run",
        "inside of a batch script: choose a checkpoint, start the ranks, retry",
        "run --checkpoint-root /fsx/$USER/run1 -- python train.py",
        "run --checkpoint-root /fsx/$USER/run1 --nodes 8 -- python train.py  # of 9: one is spare",
        "run --checkpoint-root /fsx/$USER/run1 --stall auto:10:1800 -- python train.py  # at least 30 min",
        usage="hyperpod-kit job run --checkpoint-root DIR [options] -- COMMAND ...",
    )
    run_command.add_arguments(run)


def _add_status(add_command: AddCommand) -> None:
    status = add_command(
        "status",
        "a job's attempts: how each ended, from where it resumed, what was lost",
        "status 4711",
        "status 4711_2 --html timeline.html",
        "status 4711 --tensorboard /fsx/alice/run1/tensorboard",
        "status --root /fsx/alice/run1 --json",
    )
    status.add_argument(
        "job", nargs="?", metavar="JOB", help="its id, 4711_2 for a task of an array; without one, every job on --root"
    )
    status.add_argument("--root", metavar="DIR", help="the checkpoint root, where `job run` was not started by you")
    status.add_argument("--json", action="store_true", help=_JSON_HELP)
    status.add_argument(
        "--price", action=_Price, metavar="DOLLARS", help="of a GPU for an hour: each cause is shown in dollars, too"
    )
    status.add_argument("--html", metavar="FILE", help="write a page with a picture of the timeline")
    status.add_argument(
        "--tensorboard",
        metavar="DIR",
        help="write goodput, the share of each cause and the time of a step as scalars: `tensorboard --logdir DIR`",
    )


def _add_goodput(add_command: AddCommand) -> None:
    goodput = add_command(
        "goodput",
        "what the time of many jobs went into, by user, partition, cluster or week",
        "goodput --since 7d --by user",
        "goodput --root /fsx/alice/run1 --root /fsx/bob/run2 --by week --since 2026-11-02",
    )
    goodput.add_argument(
        "--since", default="7d", metavar="TIME", help="24h, 7d, 4w, or a day as 2026-11-02 (default %(default)s)"
    )
    goodput.add_argument(
        "--by", choices=("user", "partition", "cluster", "week", "job"), default="user", help="default %(default)s"
    )
    goodput.add_argument(
        "--root",
        action="append",
        default=[],
        metavar="DIR",
        help="a checkpoint root, any number of times (default: those of your jobs; for root, of every user's)",
    )
    goodput.add_argument("--price", action=_Price, metavar="DOLLARS", help="of a GPU for an hour")
    goodput.add_argument("--json", action="store_true", help=_JSON_HELP)


def _add_lint_and_doctor(add_command: AddCommand) -> None:
    lint = add_command(
        "lint",
        "what in a batch script will keep a job from coming back",
        "lint train.sbatch",
        "lint slurm/jobs/*.sbatch --json",
    )
    lint.add_argument("files", nargs="+", metavar="FILE")
    lint.add_argument("--json", action="store_true", help=_JSON_HELP)
    doctor = add_command("doctor", "what the running Slurm lacks for jobs that come back", "doctor")
    doctor.add_argument("--json", action="store_true", help=_JSON_HELP)


def _add_sweep_and_submit(add_command: AddCommand) -> None:
    sweep = add_command(
        "sweep", "requeue jobs whose batch host is gone (--no-kill) or lost its mount", "sweep --dry-run"
    )
    sweep.add_argument("--dry-run", action="store_true", help="only say which")
    sweep.add_argument("--json", action="store_true", help=_JSON_HELP)
    add_command(
        "submit",
        "sbatch with --auto-resume on a cluster without the plugin; same line as sbatch",
        "submit --auto-resume=1 --nodes 8 train.sbatch",
    )


def _add_rewind(add_command: AddCommand) -> None:
    rewind = add_command(
        "rewind",
        "go back on purpose: the next start on a root goes on from this checkpoint, and what is newer is left",
        "rewind /fsx/$USER/run1 seq-000043.step-0000000110.e2-7f3a9c",
    )
    rewind.add_argument("root", metavar="ROOT")
    rewind.add_argument("attempt", metavar="ATTEMPT", help="a name that `hyperpod-kit checkpoint ls` shows")
    rewind.add_argument("--json", action="store_true", help=_JSON_HELP)


def _add_prove(add_command: AddCommand) -> None:
    prove = add_command(
        "prove",
        "read a checkpoint of another framework, as far as its format can prove it; what was proven is not read again",
        "prove /fsx/$USER/run1",
        "prove /fsx/$USER/run1 iter_0001000 --json",
    )
    prove.add_argument("root", metavar="ROOT")
    prove.add_argument("checkpoint", nargs="?", default="", metavar="CHECKPOINT", help="default: the newest")
    prove.add_argument("--json", action="store_true", help=_JSON_HELP)
    prove.add_argument("--part", action="store_true", help=argparse.SUPPRESS)
    prove.add_argument("--watch", action="store_true", help=argparse.SUPPRESS)
