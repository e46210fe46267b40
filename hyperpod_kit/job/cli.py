"""The program `hyperpod-kit job …`, the same on a node (vendored) and on the admin's command line.

Exit codes: 0 done · 1 failed · 2 usage · 3 what is named is not there · 75 saved, run again · 86 gave up, held.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import Callable, Dict, List, Optional, Sequence, Tuple

from hyperpod_kit import ending
from hyperpod_kit.command_line.documents import document
from hyperpod_kit.command_line.program import parse_group
from hyperpod_kit.environment import HPK_CHECKPOINT_ROOT, HPK_FRESH
from hyperpod_kit.errors import JobError, UsageError
from hyperpod_kit.job.program.command_table import JOB
from hyperpod_kit.untrusted import terminal


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run one job command and return its exit code. Raises HyperpodKitError, and SystemExit(2) for wrong usage.

    Ctrl-C is handled here and not in `__main__.py`, whose bytes may not change: bundles share that file.
    """
    return ending.run_program_ending_on_ctrl_c(lambda: _perform(argv))


def _perform(argv: Optional[Sequence[str]]) -> int:
    if argv is None:
        argv = sys.argv[1:]
    kit_arguments, command = _split(list(argv))
    if kit_arguments and kit_arguments[0] in UNLISTED:
        return UNLISTED[kit_arguments[0]](kit_arguments[1:], command)
    if kit_arguments[:1] == ["run"]:
        kit_arguments = _join_srun_args(kit_arguments)
    parsed, args = parse_group(JOB, kit_arguments, "hyperpod-kit job")
    args.command = command
    return parsed.call(args)


def prove_command(args: argparse.Namespace) -> int:
    """Read a checkpoint of another framework and return the exit code. Raises HyperpodKitError."""
    from hyperpod_kit.job.resume import proving_command

    if args.watch or args.part:  # `job run` started it, and waits no longer than it wants to
        return proving_command.main(args, os.environ)
    return ending.run_in_bounded_child_as_uid(lambda: proving_command.main(args, os.environ), args.root)


def goodput_command(args: argparse.Namespace) -> int:
    """Print what the time of jobs went into and return the exit code. Raises HyperpodKitError."""
    from hyperpod_kit.checkpoint.repository.store.open import is_path
    from hyperpod_kit.job.goodput import command as goodput
    from hyperpod_kit.untrusted import owner

    # For the user root each checkpoint root has a deadline of its own.
    if owner.is_machine_root() or (args.root and not any(map(is_path, args.root))):
        return goodput.main(args)
    roots = ", ".join(args.root) or "a root of the recorded jobs"
    return ending.run_in_bounded_child_as_uid(lambda: goodput.main(args), roots)


def _split(argv: List[str]) -> Tuple[List[str], List[str]]:
    """Return the arguments before the first `--`, and those after it."""
    if "--" not in argv:
        return argv, []
    separator_index = argv.index("--")
    return argv[:separator_index], argv[separator_index + 1 :]


def _join_srun_args(kit_arguments: List[str]) -> List[str]:
    """Join `--srun-args` and its value into one argument: argparse takes a value that begins with a dash for an option.

    `--srun-args --mpi=none` -> `--srun-args=--mpi=none`.
    """
    joined: List[str] = []
    for word in kit_arguments:
        if joined and joined[-1] == "--srun-args":
            joined[-1] += "=" + word
        else:
            joined.append(word)
    return joined


def _user() -> str:
    import getpass  # for `rewind` alone

    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())  # this machine has no name for this user


def rewind_command(args: argparse.Namespace) -> int:
    """Have the next start of a root go on from an older checkpoint. Raises HyperpodKitError."""
    from hyperpod_kit.job.records import state_place
    from hyperpod_kit.job.run.rewinding import rewind
    from hyperpod_kit.run import LocalRunner

    root = state_place.absolute(args.root)
    made = rewind(root, args.attempt, LocalRunner(), _user())
    if args.json:
        terminal.print_json(document("job rewind", {**made._asdict(), "order": list(made.order)}))
    else:
        terminal.print_stdout(
            f"the next start resumes from {made.attempt}; newer checkpoints are ignored and stay where they are"
        )
    return 0


def _exec(kit_arguments: List[str], command: List[str]) -> int:
    from hyperpod_kit.job.step.container import INSIDE
    from hyperpod_kit.job.step.local_machine import ALONE
    from hyperpod_kit.job.wrapper.rank import run_rank

    if not command:
        raise UsageError("no command given", hint="hyperpod-kit job exec -- COMMAND ...")
    return run_rank(
        command, os.environ, in_container=INSIDE in kit_arguments, ends_all_processes=ALONE in kit_arguments
    )


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
"""Commands that no person types: `job run` and `hyperpod-kit fan-out` start them.

name -> function(arguments before `--`, arguments after it)
"""


def print_task_prolog_of_shared_decision(args: argparse.Namespace) -> int:
    """Print the lines for slurm/task_prolog.sh and return the exit code. Raises HyperpodKitError."""
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
    if record.get("from") is None:
        return 86
    return 0


def submit_command(args: argparse.Namespace) -> int:
    """Call sbatch with `args.words`, and `args.command` after `--`. Raises HyperpodKitError."""
    from hyperpod_kit.job import submit
    from hyperpod_kit.run import LocalRunner
    from hyperpod_kit.slurm import control
    from hyperpod_kit.untrusted import by_descriptor

    argv = list(args.words)
    if args.command:
        argv += ["--", *args.command]
    runner = LocalRunner()
    for text in submit.warnings(submit.parse(argv), os.getcwd()):
        terminal.print_stderr(text)
    copy: Optional[str] = None
    if control.has_option(runner, "sbatch", "--auto-resume"):
        call = ["sbatch", *argv]
    else:
        line = submit.parse(argv)
        script, script_auto_resume = submit.copy_script_without_auto_resume(line)
        if script != line.script:
            copy = script
        call = submit.command(line, script_auto_resume, script)
    try:
        done = runner.run(call, timeout=60.0, check=False)
    finally:
        if copy:
            by_descriptor.unlink(copy)
    sys.stdout.write(done.stdout)
    sys.stderr.write(done.stderr)
    return done.returncode
