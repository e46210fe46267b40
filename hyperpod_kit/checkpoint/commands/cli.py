"""`hyperpod-kit checkpoint`, the part that runs on any Python, without torch: what there is, and its words."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Callable, List, Optional, Sequence

from hyperpod_kit import ending
from hyperpod_kit.checkpoint.commands import inspection, keep, repair
from hyperpod_kit.checkpoint.commands.inspection import open_existing_root_as_owner
from hyperpod_kit.checkpoint.commands.table import format_byte_count
from hyperpod_kit.checkpoint.repository import tensor_export
from hyperpod_kit.checkpoint.repository.read import verify
from hyperpod_kit.checkpoint.repository.store.open import is_path
from hyperpod_kit.errors import UsageError
from hyperpod_kit.exit_codes import ExitCode
from hyperpod_kit.untrusted import terminal
from hyperpod_kit.untrusted.text import clean_one_line


def _flush_one_ended_job_as_root(args: argparse.Namespace, shm_folder: str, caller_uid: int) -> int:
    from hyperpod_kit.checkpoint.agent.flush import flush_handover

    if caller_uid != 0:
        raise UsageError(
            f"the end of a job is root's: this is uid {caller_uid}", hint="hyperpod-kit checkpoint flush --all"
        )
    ended, max_age = flush_handover.parse_ended_job(args.ended or args.hand_over), args.max_age * 3600.0
    if args.hand_over:
        return flush_handover.start_flush_and_await_announcement(
            ended, folder=shm_folder, max_age=max_age, say=terminal.print_stdout
        )
    return flush_handover.flush_job_until_saved(
        ended, folder=shm_folder, max_age=max_age, announcement_path=args.announce, say=terminal.print_stdout
    )


def _flush_dead_trainers_memory(args: argparse.Namespace) -> int:
    from hyperpod_kit.checkpoint.agent.flush import flush, flush_users
    from hyperpod_kit.checkpoint.agent.shm import shm_paths

    folder, caller_uid = shm_paths.shared_memory_root(), shm_paths.node_uid()
    if args.ended or args.hand_over:
        return _flush_one_ended_job_as_root(args, folder, caller_uid)
    if caller_uid != 0 and args.uid not in (None, caller_uid):
        raise UsageError(
            f"--uid {args.uid} is for root: this is uid {caller_uid}", hint="hyperpod-kit checkpoint flush --all"
        )
    if args.uid is not None:
        uids = [args.uid]
    elif caller_uid == 0:
        uids = shm_paths.uids_with_shm_files(folder)
    else:
        uids = [caller_uid]
    outcomes = []
    for uid in uids:
        outcomes += flush_users.flush_as(
            uid,
            folder=folder,
            job=args.job,
            timeout=args.timeout,
            gid=args.gid,
            max_age=args.max_age * 3600.0,
            asked_by=_describe_flush_requester(args),
        )
    if args.json:
        terminal.print_json([outcome._asdict() for outcome in outcomes])
    else:
        for outcome in outcomes:
            memory = f"left in {folder}"
            if outcome.removed:
                memory = "memory freed"
            terminal.print_stdout(f"{outcome.run}: {outcome.note}; {memory}")
    return flush.exit_code(outcomes)


def _describe_flush_requester(args: argparse.Namespace) -> str:
    job, admin = os.environ.get("SLURM_JOB_ID"), os.environ.get("SUDO_USER")
    if args.uid is not None and job:
        return f"Epilog of job {job}"
    if admin:
        return f"hyperpod-kit checkpoint flush by {admin}"
    return "hyperpod-kit checkpoint flush"


def build_parser(other_commands_for_help: Sequence[str] = ()) -> argparse.ArgumentParser:
    epilog = None
    if other_commands_for_help:
        epilog = f"with torch: {', '.join(other_commands_for_help)}"
    parser = argparse.ArgumentParser(
        prog="hyperpod-kit checkpoint", description="Checkpoints of a run, without torch.", epilog=epilog
    )
    commands = parser.add_subparsers(dest="command", required=True)

    def command(
        name: str, run: Callable[[argparse.Namespace], int], summary: str, *examples: str
    ) -> argparse.ArgumentParser:
        lines = (f"hyperpod-kit checkpoint {name} {line}" for line in examples)
        sub = commands.add_parser(
            name,
            help=summary,
            description=summary,
            epilog="\n  ".join(["Examples:", *lines]),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if name != "flush":
            sub.add_argument("root", help="a directory, or s3://BUCKET/PREFIX")
        if name not in ("pin", "unpin"):
            sub.add_argument("--json", action="store_true", help="data on standard output")
        sub.set_defaults(run=run)
        return sub

    sub = command(
        "ls",
        inspection.ls,
        "list a root's checkpoints, newest first; reads no data",
        "/fsx/alice/run1",
        "s3://my-bucket/run1 --limit 5 --json",
    )
    sub.add_argument("--limit", type=int, default=50, metavar="N", help="only the newest N (default 50, 0 all)")
    sub = command(
        "show",
        inspection.show,
        "one checkpoint's manifest and files; reads no data",
        "/fsx/alice/run1",
        "/fsx/alice/run1 --tensors  # of the newest",
    )
    sub.add_argument("attempt", nargs="?", help="default: the newest that was committed")
    sub.add_argument("--tensors", action="store_true", help="and where each tensor lies")
    sub = command(
        "get",
        write_tensor_to_output_file,
        "write one tensor to a .safetensors or .npy file; every byte of it is verified",
        "/fsx/alice/run1 model.head.weight --output head.npy",
    )
    sub.add_argument("tensor", help="as `show --tensors` names it")
    sub.add_argument("--attempt", help="as `ls` names it (default: the newest that can be proved)")
    sub.add_argument("--output", required=True, metavar="FILE", help="a new file in .safetensors or .npy")
    sub = command(
        "verify",
        inspection.verify_checkpoints,
        "verify every byte: 0 all valid, 1 some are not, none is, or RUN.json is not whole",
        "/fsx/alice/run1",
        "/fsx/alice/run1 --json",
    )
    sub.add_argument("attempts", nargs="*", help="default: all that were committed")
    sub = command(
        "repair",
        repair.repair,
        "write again a lost RUN.json, and lost manifests of checkpoints every byte of which proves itself: 0 done, "
        "1 the newest that was committed cannot be rebuilt",
        "/fsx/alice/run1 --dry-run",
        "/fsx/alice/run1 --run-id 4f2a  # where checkpoints are of several runs",
    )
    sub.add_argument("--dry-run", action="store_true", help="only say what would be written")
    sub.add_argument("--run-id", metavar="ID", help="whose root it is: a run's id as a refusal names it")
    sub = command(
        "prune",
        keep.prune,
        "delete what the policy does not keep: 0 done, 1 something was left",
        "/fsx/alice/run1 --latest 3 --every-steps 1000 --dry-run",
        "/fsx/alice/run1 --latest 3 --best loss:2",
    )
    keep.add_retention_policy_options(sub)
    sub.add_argument("--dry-run", action="store_true", help="only say what would be deleted")
    sub.add_argument("--verify", action="store_true", help="read every byte of the newest before an older one goes")
    sub = command(
        "pin",
        keep.pin,
        "keep a checkpoint under every policy",
        "/fsx/alice/run1 ATTEMPT --reason 'before the new data'  # ATTEMPT as `ls` names it",
    )
    sub.add_argument("attempt", help="as `ls` names it")
    sub.add_argument("--reason", default="", help="why, for whoever finds it")
    sub = command("unpin", keep.unpin, "leave a checkpoint to the policy again", "/fsx/alice/run1 ATTEMPT")
    sub.add_argument("attempt", help="as `ls` names it")
    sub = command(
        "flush",
        _flush_dead_trainers_memory,
        "persist what dead trainers left in shared memory, then free it: 0 all freed, 1 something was left",
        "--job 4711",
        "--all --timeout 120",
    )
    which = sub.add_mutually_exclusive_group(required=True)
    which.add_argument("--job", help="only this Slurm job")
    which.add_argument("--all", action="store_true", help="of every job that is dead")
    which.add_argument(
        "--hand-over", metavar="JOB.RESTART.UID[.GID]", help="as root: let a unit see to one job's (the Epilog)"
    )
    which.add_argument(
        "--ended",
        metavar="JOB.RESTART.UID[.GID]",
        help="as root: one job's, for an hour while bytes move or storage is away (hyperpod-kit-flush@)",
    )
    sub.add_argument("--announce", default="", metavar="FILE", help="of --ended: made when storage says what will come")
    sub.add_argument("--uid", type=int, help="as root: only this user's (the Epilog)")
    sub.add_argument("--gid", type=int, help="as root: in this group, not the user's own")
    sub.add_argument("--timeout", type=float, default=45.0, help="seconds per user")
    sub.add_argument(
        "--max-age",
        type=float,
        default=24.0,
        help="hours from its sealing after which a capture that cannot be saved is given up: exit code 86",
    )
    return parser


def main(argv: List[str], other_commands_for_help: Sequence[str] = ()) -> int:
    """Run the command line and return its exit code, with errors on standard error.
    `other_commands_for_help`: as of `run_command_raising_errors`."""
    return ending.run(lambda: run_command_raising_errors(argv, other_commands_for_help))


def run_command_raising_errors(argv: List[str], other_commands_for_help: Sequence[str] = ()) -> int:
    """Run the command line and return its exit code, with errors raised.
    `other_commands_for_help`: commands that the caller serves, for the help. Raise HyperpodKitError."""
    try:
        args = build_parser(other_commands_for_help).parse_args(argv)
    except SystemExit as end:
        return int(end.code or 0)

    def work() -> int:
        try:
            return int(args.run(args))
        except BrokenPipeError:
            return ending.discard_stdout_and_return_code(0)  # it has seen enough (`ls | head`)

    root = getattr(args, "root", None)
    if root is not None and is_path(root):
        return ending.run_converting_os_to_kit_errors(
            lambda: ending.run_in_bounded_child_as_uid(work, root, _effective_user(args, root)),
            lambda err: _file_error_ending(err, args),
        )
    return ending.run_converting_os_to_kit_errors(work, lambda err: _file_error_ending(err, args))


def _effective_user(args: argparse.Namespace, root: str) -> Optional[int]:
    """Return the user as whom root runs the command: the root's owner, but for `get`, whose output belongs to
    whoever called it."""
    from hyperpod_kit.untrusted import owner  # not every command needs it

    if args.run is write_tensor_to_output_file:
        return None
    return owner.uid_to_act_as_if_root(root)


def _file_error_ending(err: OSError, args: argparse.Namespace) -> ending.Ending:
    return ending.Ending(f"{err.filename or args.root}: {verify.describe_failure(err)}", None, ExitCode.ABSENT)


# `checkpoint get`: one tensor, for whoever has no torch.


def write_tensor_to_output_file(args: argparse.Namespace) -> int:
    """Write one tensor to a file and print what it is; 0 when written. Raise as `tensor_export.export_tensor`."""
    tensor = tensor_export.export_tensor(open_existing_root_as_owner(args), args.tensor, args.output, args.attempt)
    if args.json:
        terminal.print_json({**tensor._asdict(), "output": args.output})
        return 0
    for checkpoint_id, reason in tensor.rejected:
        terminal.print_stderr(f"passed over {checkpoint_id}: {reason}")
    shape = " x ".join(map(str, tensor.shape)) or "one number"
    name = clean_one_line(tensor.name)
    terminal.print_stdout(
        f"{name} of {tensor.attempt}: {tensor.dtype}, {shape}, {format_byte_count(tensor.nbytes)} verified, in "
        f"{args.output}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(ending.run_program_ending_on_ctrl_c(lambda: main(sys.argv[1:])))
