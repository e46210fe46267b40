"""`hyperpod-kit job …`, on a node (vendored program) and from the admin's command line alike.

Exit codes: 0 done · 1 failed · 2 usage · 3 what is named is not there · 75 saved, run again · 86 gave up, held.
"""

from __future__ import annotations

import argparse
import getpass
import math
import os
import shlex
import sys
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Sequence, Tuple

from hyperpod_kit import ending
from hyperpod_kit.environment import HPK_ATTEMPT, HPK_CHECKPOINT_ROOT, HPK_FRESH, HPK_RESUME_FROM
from hyperpod_kit.errors import JobError, UsageError
from hyperpod_kit.job.decide.budget import RetryPolicy
from hyperpod_kit.run import LocalRunner
from hyperpod_kit.slurm import control
from hyperpod_kit.untrusted import by_descriptor, terminal

if TYPE_CHECKING:
    from hyperpod_kit.job.step.hang import StallRule


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run one job command; returns its exit code. Raises HyperpodKitError, and SystemExit(2) for wrong usage.

    Ctrl-C is heard here and not in `__main__.py`, whose bytes may not change: bundles share that file.
    """
    return ending.run_program_ending_on_ctrl_c(lambda: _perform(argv))


def _perform(argv: Optional[Sequence[str]]) -> int:
    kit_arguments, command = _split(list(sys.argv[1:] if argv is None else argv))
    unlisted = UNLISTED.get(kit_arguments[0]) if kit_arguments else None
    if unlisted is not None:
        return unlisted(kit_arguments[1:], command)
    if kit_arguments[:1] == ["submit"] and kit_arguments[1:2] not in (["-h"], ["--help"]):
        return _submit(kit_arguments[1:], command)
    args = build_parser().parse_args(_join_srun_args(kit_arguments))
    if args.verb == "run":
        return _run(args, command)
    if args.verb == "rewind":
        return _rewind(args)
    if args.verb == "prove":
        return _prove(args)
    if args.verb == "goodput":
        return _goodput(args)
    if args.verb in ("status", "lint", "doctor", "sweep"):
        from hyperpod_kit.job import cli_look

        return cli_look.main(args)
    return _print_task_prolog_of_shared_decision()


def _prove(args: argparse.Namespace) -> int:
    from hyperpod_kit.job.resume import proving_command

    if args.watch or args.part:  # `job run` started it, and waits no longer than it wants to
        return proving_command.main(args, os.environ)
    return ending.run_in_bounded_child_as_uid(lambda: proving_command.main(args, os.environ), args.root)


def _goodput(args: argparse.Namespace) -> int:
    from hyperpod_kit.checkpoint.repository.store.open import is_path
    from hyperpod_kit.job.goodput import command as goodput
    from hyperpod_kit.untrusted import owner

    # For root each root has a deadline of its own.
    if owner.is_machine_root() or (args.root and not any(map(is_path, args.root))):
        return goodput.main(args)
    roots = ", ".join(args.root) or "a root of the jobs that are noted"
    return ending.run_in_bounded_child_as_uid(lambda: goodput.main(args), roots)


def _split(argv: List[str]) -> Tuple[List[str], List[str]]:
    """What stands before the first `--`, and after it."""
    if "--" not in argv:
        return argv, []
    separator_index = argv.index("--")
    return argv[:separator_index], argv[separator_index + 1 :]


def _join_srun_args(kit_arguments: List[str]) -> List[str]:
    """`--srun-args --mpi=none` -> `--srun-args=--mpi=none`: argparse takes a value with a dash for an option."""
    joined: List[str] = []
    for word in kit_arguments:
        if joined and joined[-1] == "--srun-args":
            joined[-1] += "=" + word
        else:
            joined.append(word)
    return joined


class _Price(argparse.Action):
    """US dollars, one amount of them."""

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
    parser = argparse.ArgumentParser(prog="hyperpod-kit job", description="Run a job that comes back by itself.")
    commands = parser.add_subparsers(dest="verb", required=True, metavar="COMMAND")

    def verb(name: str, help: str, *examples: str, usage: Optional[str] = None) -> argparse.ArgumentParser:
        lines = (f"hyperpod-kit job {line}" for line in examples)
        return commands.add_parser(
            name,
            help=help,
            description=help[0].upper() + help[1:] + ".",
            usage=usage,
            epilog="\n  ".join(["Examples:", *lines]),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    defaults = RetryPolicy()
    run = verb(
        "run",
        "inside of a batch script: choose a checkpoint, start the ranks, retry",
        "run --checkpoint-root /fsx/$USER/run1 -- python train.py",
        "run --checkpoint-root /fsx/$USER/run1 --nodes 8 -- python train.py  # of 9: one is spare",
        "run --checkpoint-root /fsx/$USER/run1 --stall auto:10:1800 -- python train.py  # at least 30 min",
        usage="hyperpod-kit job run --checkpoint-root DIR [options] -- COMMAND ...",
    )
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
    run.add_argument(
        "--max-restarts",
        type=int,
        metavar="N",
        help=f"failures allowed without a newer valid checkpoint (default {defaults.max_restarts})",
    )
    run.add_argument(
        "--max-requeues",
        type=int,
        default=defaults.max_requeues,
        metavar="N",
        help="runs of the batch script in total (default %(default)s)",
    )
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
    run.add_argument("--srun-args", action="append", default=[], metavar="ARGS", help="more arguments for srun")
    run.add_argument(
        "--container-python",
        default="",
        metavar="PATH",
        help="the image's Python, for --container-image in --srun-args (default: the first in sight)",
    )
    for name, value in (
        ("probe-interval", 5.0),
        ("silent-after", 6.0),
        ("refused-after", 30.0),
        ("backoff", defaults.backoff),
        ("storage-wait", 600.0),
        ("controller-wait", 2400.0),
    ):
        run.add_argument(f"--{name}", type=float, default=value, help=argparse.SUPPRESS)
    status = verb(
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
    status.add_argument("--json", action="store_true", help="data on standard output")
    status.add_argument(
        "--price", action=_Price, metavar="DOLLARS", help="of a GPU for an hour: each cause is shown in dollars, too"
    )
    status.add_argument("--html", metavar="FILE", help="write a page with a picture of the timeline")
    status.add_argument(
        "--tensorboard",
        metavar="DIR",
        help="write goodput, the share of each cause and the time of a step as scalars: `tensorboard --logdir DIR`",
    )
    goodput = verb(
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
    goodput.add_argument("--json", action="store_true", help="data on standard output")
    lint = verb(
        "lint",
        "what in a batch script will keep a job from coming back",
        "lint train.sbatch",
        "lint slurm/jobs/*.sbatch --json",
    )
    lint.add_argument("files", nargs="+", metavar="FILE")
    lint.add_argument("--json", action="store_true", help="data on standard output")
    doctor = verb("doctor", "what the running Slurm lacks for jobs that come back", "doctor")
    doctor.add_argument("--json", action="store_true", help="data on standard output")
    sweep = verb("sweep", "requeue jobs whose batch host is gone (--no-kill) or lost its mount", "sweep --dry-run")
    sweep.add_argument("--dry-run", action="store_true", help="only say which")
    sweep.add_argument("--json", action="store_true", help="data on standard output")
    verb(
        "submit",
        "sbatch with --auto-resume on a cluster without the plugin; same line as sbatch",
        "submit --auto-resume=1 --nodes 8 train.sbatch",
    )
    rewind = verb(
        "rewind",
        "go back on purpose: the next start on a root goes on from this checkpoint, and what is newer is left",
        "rewind /fsx/$USER/run1 seq-000043.step-0000000110.e2-7f3a9c",
    )
    rewind.add_argument("root", metavar="ROOT")
    rewind.add_argument("attempt", metavar="ATTEMPT", help="a name that `hyperpod-kit checkpoint ls` shows")
    rewind.add_argument("--json", action="store_true", help="data on standard output")
    prove = verb(
        "prove",
        "read a checkpoint of another framework, as far as its format can prove it; what was proven is not read again",
        "prove /fsx/$USER/run1",
        "prove /fsx/$USER/run1 iter_0001000 --json",
    )
    prove.add_argument("root", metavar="ROOT")
    prove.add_argument("checkpoint", nargs="?", default="", metavar="CHECKPOINT", help="default: the newest")
    prove.add_argument("--json", action="store_true", help="data on standard output")
    prove.add_argument("--part", action="store_true", help=argparse.SUPPRESS)
    prove.add_argument("--watch", action="store_true", help=argparse.SUPPRESS)
    verb("task-prolog", "for slurm/task_prolog.sh: one checkpoint for all ranks of a bare srun", "task-prolog")
    return parser


def _stall_rule_never_by_default_if_interactive(option: Optional[str], srun_args: Sequence[str]) -> StallRule:
    """Who sits at a terminal, with a debugger or until the next morning, ends what hangs himself."""
    from hyperpod_kit.job.step import hang

    is_interactive = os.isatty(0) or any("--pty" in srun_options.split() for srun_options in srun_args)
    if option is None and is_interactive:
        return hang.NEVER
    return hang.StallRule.parse(option or "auto")


def _run(args: argparse.Namespace, command: List[str]) -> int:
    from hyperpod_kit.job.base.report import JobReport
    from hyperpod_kit.job.records import state_place
    from hyperpod_kit.job.run.series import JobSeries
    from hyperpod_kit.job.run.supervisor import JobSupervisor
    from hyperpod_kit.job.step.options import RunOptions

    if not command:
        raise UsageError("no command given", hint="hyperpod-kit job run --checkpoint-root DIR -- python train.py")
    resume_from = os.environ.get(HPK_RESUME_FROM)
    if resume_from and not os.environ.get(
        HPK_ATTEMPT
    ):  # with it, both were inherited from the job that submitted this one
        raise UsageError(
            f"{HPK_RESUME_FROM}={resume_from} is set, and `job run` tells the ranks where they begin",
            hint=f"unset {HPK_RESUME_FROM}; to go back to a checkpoint: hyperpod-kit job run --from ATTEMPT",
        )
    root = state_place.absolute(args.checkpoint_root)
    options = RunOptions(
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
    with JobSeries(options.state, os.environ) as series:
        return JobSupervisor(options, os.environ, runner=LocalRunner(), report=JobReport(event_listener=series)).run()


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())  # one that this machine has no name for


def _rewind(args: argparse.Namespace) -> int:
    from hyperpod_kit.job.records import state_place
    from hyperpod_kit.job.run.rewinding import rewind

    root = state_place.absolute(args.root)
    made = rewind(root, args.attempt, LocalRunner(), _user())
    if args.json:
        terminal.print_json({**made._asdict(), "order": list(made.order)})
    else:
        terminal.print_stdout(
            f"the next start goes on from {made.attempt}; what is newer is left, and lies where it was"
        )
    return 0


def _exec(kit_arguments: List[str], command: List[str]) -> int:
    from hyperpod_kit.job.step.container import INSIDE
    from hyperpod_kit.job.wrapper.rank import run_rank

    if not command:
        raise UsageError("no command given", hint="hyperpod-kit job exec -- COMMAND ...")
    return run_rank(command, os.environ, in_container=INSIDE in kit_arguments)


def _fan_out(kit_arguments: List[str], command: List[str]) -> int:
    from hyperpod_kit.job.fan_out import command as fan_out

    return fan_out.main(kit_arguments)


def _print_whether_root_serves_here(state_and_root: List[str], command: List[str]) -> int:
    from hyperpod_kit.job.step import container_starts

    return container_starts.print_whether_root_serves_here(state_and_root, os.environ)


UNLISTED: Dict[str, Callable[[List[str], List[str]], int]] = {
    "exec": _exec,
    "fan-out": _fan_out,
    "look": _print_whether_root_serves_here,
}
"""What no person types: `job run` does, and `hyperpod-kit fan-out`. Words before `--`, and after it."""


def _print_task_prolog_of_shared_decision() -> int:
    from hyperpod_kit.job.records import state_place
    from hyperpod_kit.job.resume import shared_decision
    from hyperpod_kit.job.step.options import RunOptions, prepare

    root = os.environ.get(HPK_CHECKPOINT_ROOT)
    if not root:
        return 0
    root = state_place.absolute(root)
    options = RunOptions(root, (), state_directory=state_place.chosen(root, "", os.environ))
    by = f"{os.environ.get('SLURM_PROCID', '')}@{os.uname().nodename}"
    prepare(options)
    try:
        record = shared_decision.read_or_make_shared_record(
            options.state,
            shared_decision.srun_launch_key_zeros_if_unset(os.environ),
            lambda: shared_decision.decide(options.root, options.state, by, fresh=os.environ.get(HPK_FRESH) == "1"),
        )
    except OSError as err:
        raise JobError(f"{options.state}: {err.strerror or err}") from err
    print("\n".join(shared_decision.task_prolog_lines(record, os.environ.get("SLURM_PROCID", ""))))
    return 86 if record.get("from") is None else 0


def _submit(sbatch_arguments: List[str], rest: List[str]) -> int:
    from hyperpod_kit.job import submit

    argv = [*sbatch_arguments, *(["--", *rest] if rest else [])]
    runner = LocalRunner()
    for text in submit.warnings(submit.parse(argv), os.getcwd()):
        terminal.print_stderr(text)
    if control.has_option(runner, "sbatch", "--auto-resume"):
        call, copy = ["sbatch", *argv], None
    else:
        line = submit.parse(argv)
        script, script_auto_resume = submit.copy_script_without_auto_resume(line)
        copy = script if script != line.script else None
        call = submit.command(line, script_auto_resume, script)
    try:
        done = runner.run(call, timeout=60.0, check=False)
    finally:
        if copy:
            by_descriptor.unlink(copy)
    sys.stdout.write(done.stdout)
    sys.stderr.write(done.stderr)
    return done.returncode
