"""The table of the commands of `hyperpod-kit job` that people type.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import math

from hyperpod_kit.command_line.specs import ArgumentSpec, CommandSpec, GroupSpec, OptionSpec
from hyperpod_kit.errors import UsageError
from hyperpod_kit.job.run.command import RUN

_LOOK = "hyperpod_kit.job.program.cli_look"

_JSON = OptionSpec("--json", "Print JSON on stdout.")


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
    "Run training jobs that resume after a failure.",
    (
        RUN,
        CommandSpec(
            "status",
            "Show the attempts of a job: how each ended, where it resumed, what was lost.",
            f"{_LOOK}:status_command",
            arguments=(
                ArgumentSpec("job", "JOB", "Job id, or 4711_2 for an array task; default: every job on --root.", "?"),
            ),
            options=(
                OptionSpec("--root", "Checkpoint root; needed for jobs that you did not start.", "DIR"),
                _JSON,
                OptionSpec(
                    "--price",
                    "Price of a GPU-hour, to show each cause in dollars.",
                    "DOLLARS",
                    _parse_dollars,
                    is_given_once=True,
                ),
                OptionSpec("--html", "Write a page with a timeline to FILE.", "FILE"),
                OptionSpec(
                    "--tensorboard",
                    "Write goodput, the share of each cause and step times as scalars to DIR.",
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
            "Show how jobs spent their time, by user, partition, cluster or week.",
            "hyperpod_kit.job.cli:goodput_command",
            options=(
                OptionSpec(
                    "--since",
                    "Start of the period: 24h, 7d or 4w ago, or a day (UTC) such as 2026-11-02; default: {default}.",
                    "TIME",
                    default="7d",
                ),
                OptionSpec(
                    "--by",
                    "Grouping; default: {default}.",
                    default="user",
                    choices=("user", "partition", "cluster", "week", "job"),
                ),
                OptionSpec(
                    "--root",
                    "Checkpoint root; repeatable. Default: the roots of your jobs, or as root of all users' jobs.",
                    "DIR",
                    is_repeated=True,
                ),
                OptionSpec("--price", "Price of a GPU-hour.", "DOLLARS", _parse_dollars, is_given_once=True),
                _JSON,
            ),
            examples=(
                "--since 7d --by user",
                "--root /fsx/alice/run1 --root /fsx/bob/run2 --by week --since 2026-11-02",
            ),
        ),
        CommandSpec(
            "lint",
            "Find what in a batch script would prevent a job from resuming.",
            f"{_LOOK}:lint_command",
            arguments=(ArgumentSpec("files", "FILE", "Batch scripts.", "+"),),
            options=(
                OptionSpec(
                    "--config",
                    "Configuration in JSON, or a bundle's node_config.json, that has the training environment. "
                    "Default: this node's.",
                    "FILE",
                ),
                _JSON,
            ),
            examples=("train.sbatch", "--config provisioning_parameters.json slurm/jobs/*.sbatch --json"),
        ),
        CommandSpec(
            "doctor",
            "Check whether Slurm's configuration lets jobs resume.",
            f"{_LOOK}:doctor_command",
            options=(_JSON,),
        ),
        CommandSpec(
            "sweep",
            "Requeue jobs whose batch host was lost (--no-kill) or lost its mount.",
            f"{_LOOK}:sweep_command",
            options=(OptionSpec("--dry-run", "Show which jobs would be requeued, and change nothing."), _JSON),
            examples=("--dry-run",),
        ),
        CommandSpec(
            "submit",
            "Submit a batch script with --auto-resume on a cluster without the plugin; takes the arguments of sbatch.",
            "hyperpod_kit.job.cli:submit_command",
            takes_foreign_words=True,
            examples=("--auto-resume=1 --nodes 8 train.sbatch",),
        ),
        CommandSpec(
            "rewind",
            "Make the next start on a root resume from an older checkpoint; newer ones are ignored.",
            "hyperpod_kit.job.cli:rewind_command",
            arguments=(
                ArgumentSpec("root", "ROOT", "Checkpoint root."),
                ArgumentSpec("attempt", "CHECKPOINT", "Name, as `checkpoint ls` shows it."),
            ),
            options=(_JSON,),
            examples=("/fsx/$USER/run1 seq-000043.step-0000000110.e2-7f3a9c",),
        ),
        CommandSpec(
            "prove",
            "Verify a checkpoint of another framework as far as its format allows; verified files are not read again.",
            "hyperpod_kit.job.cli:prove_command",
            arguments=(
                ArgumentSpec("root", "ROOT", "Checkpoint root."),
                ArgumentSpec("checkpoint", "CHECKPOINT", "Default: the newest.", "?", default=""),
            ),
            options=(_JSON, OptionSpec("--part", "", is_hidden=True), OptionSpec("--watch", "", is_hidden=True)),
            examples=("/fsx/$USER/run1", "/fsx/$USER/run1 iter_0001000 --json"),
        ),
        CommandSpec(
            "task-prolog",
            "Print the checkpoint that all ranks of a bare srun use (run by slurm/task_prolog.sh).",
            "hyperpod_kit.job.cli:print_task_prolog_of_shared_decision",
        ),
    ),
)
