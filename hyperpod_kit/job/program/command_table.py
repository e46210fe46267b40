"""The table of the commands of `hyperpod-kit job` that people type.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import math

from hyperpod_kit.command_line.specs import ArgumentSpec, CommandSpec, GroupSpec, OptionSpec
from hyperpod_kit.errors import UsageError
from hyperpod_kit.job.run.command import RUN

_LOOK = "hyperpod_kit.job.program.cli_look"

_JSON = OptionSpec("--json", "Data on standard output.")


def _parse_dollars(text: str) -> float:
    try:
        price = float(text)
    except ValueError:
        price = math.nan
    if not 0 <= price < math.inf:
        raise UsageError(f"--price is {text!r}, expected dollars such as 2.50")
    return price


JOB = GroupSpec(
    "job",
    "Run a job that comes back by itself.",
    (
        RUN,
        CommandSpec(
            "status",
            "A job's attempts: how each ended, from where it resumed, what was lost.",
            f"{_LOOK}:status_command",
            arguments=(
                ArgumentSpec(
                    "job", "JOB", "Its id, 4711_2 for a task of an array; without one, every job on --root.", "?"
                ),
            ),
            options=(
                OptionSpec("--root", "The checkpoint root, where `job run` was not started by you.", "DIR"),
                _JSON,
                OptionSpec(
                    "--price",
                    "Of a GPU for an hour: each cause is shown in dollars, too.",
                    "DOLLARS",
                    _parse_dollars,
                    is_given_once=True,
                ),
                OptionSpec("--html", "Write a page with a picture of the timeline.", "FILE"),
                OptionSpec(
                    "--tensorboard",
                    "Write goodput, the share of each cause and the time of a step as scalars: `tensorboard --logdir "
                    "DIR`.",
                    "DIR",
                ),
            ),
            examples=(
                "4711",
                "4711_2 --html timeline.html",
                "4711 --tensorboard /fsx/alice/run1/tensorboard",
                "--root /fsx/alice/run1 --json",
            ),
        ),
        CommandSpec(
            "goodput",
            "What the time of many jobs went into, by user, partition, cluster or week.",
            "hyperpod_kit.job.cli:goodput_command",
            options=(
                OptionSpec("--since", "24h, 7d, 4w, or a day as 2026-11-02 (default {default})", "TIME", default="7d"),
                OptionSpec(
                    "--by",
                    "Default {default}.",
                    default="user",
                    choices=("user", "partition", "cluster", "week", "job"),
                ),
                OptionSpec(
                    "--root",
                    "A checkpoint root, any number of times (default: those of your jobs; for root, of every user's)",
                    "DIR",
                    is_repeated=True,
                ),
                OptionSpec("--price", "Of a GPU for an hour.", "DOLLARS", _parse_dollars, is_given_once=True),
                _JSON,
            ),
            examples=(
                "--since 7d --by user",
                "--root /fsx/alice/run1 --root /fsx/bob/run2 --by week --since 2026-11-02",
            ),
        ),
        CommandSpec(
            "lint",
            "What in a batch script will keep a job from coming back.",
            f"{_LOOK}:lint_command",
            arguments=(ArgumentSpec("files", "FILE", count="+"),),
            options=(
                OptionSpec(
                    "--config",
                    "With the training environment: a configuration in JSON, or a bundle's node_config.json. Default: "
                    "that of this node.",
                    "FILE",
                ),
                _JSON,
            ),
            examples=("train.sbatch", "--config provisioning_parameters.json slurm/jobs/*.sbatch --json"),
        ),
        CommandSpec(
            "doctor",
            "What the running Slurm lacks for jobs that come back.",
            f"{_LOOK}:doctor_command",
            options=(_JSON,),
        ),
        CommandSpec(
            "sweep",
            "Requeue jobs whose batch host is gone (--no-kill) or lost its mount.",
            f"{_LOOK}:sweep_command",
            options=(OptionSpec("--dry-run", "Only say which."), _JSON),
            examples=("--dry-run",),
        ),
        CommandSpec(
            "submit",
            "`sbatch` with --auto-resume on a cluster without the plugin; same line as sbatch.",
            "hyperpod_kit.job.cli:submit_command",
            takes_foreign_words=True,
            examples=("--auto-resume=1 --nodes 8 train.sbatch",),
        ),
        CommandSpec(
            "rewind",
            "Go back on purpose: the next start on a root goes on from this checkpoint, and what is newer is left.",
            "hyperpod_kit.job.cli:rewind_command",
            arguments=(
                ArgumentSpec("root", "ROOT"),
                ArgumentSpec("attempt", "ATTEMPT", "A name that `hyperpod-kit checkpoint ls` shows."),
            ),
            options=(_JSON,),
            examples=("/fsx/$USER/run1 seq-000043.step-0000000110.e2-7f3a9c",),
        ),
        CommandSpec(
            "prove",
            "Read a checkpoint of another framework, as far as its format can prove it; what was proven is not read "
            "again.",
            "hyperpod_kit.job.cli:prove_command",
            arguments=(
                ArgumentSpec("root", "ROOT"),
                ArgumentSpec("checkpoint", "CHECKPOINT", "Default: the newest.", "?", default=""),
            ),
            options=(_JSON, OptionSpec("--part", "", is_hidden=True), OptionSpec("--watch", "", is_hidden=True)),
            examples=("/fsx/$USER/run1", "/fsx/$USER/run1 iter_0001000 --json"),
        ),
        CommandSpec(
            "task-prolog",
            "For slurm/task_prolog.sh: one checkpoint for all ranks of a bare srun.",
            "hyperpod_kit.job.cli:print_task_prolog_of_shared_decision",
        ),
    ),
)
