"""`hyperpod-kit checkpoint`, the part that runs on any Python, without torch: what there is, and its words."""

from __future__ import annotations

import argparse
import os
import sys
from typing import List, Optional

from hyperpod_kit import ending
from hyperpod_kit.checkpoint.commands.byte_counts import format_byte_count
from hyperpod_kit.checkpoint.commands.inspection import open_existing_root_as_owner
from hyperpod_kit.checkpoint.commands.keep import RETENTION_OPTIONS
from hyperpod_kit.checkpoint.repository import tensor_export
from hyperpod_kit.checkpoint.repository.read import verify
from hyperpod_kit.checkpoint.repository.store.open import is_path
from hyperpod_kit.command_line.documents import document
from hyperpod_kit.command_line.program import parse_group
from hyperpod_kit.command_line.specs import ArgumentSpec, CommandSpec, GroupSpec, OptionSpec, import_object
from hyperpod_kit.errors import UsageError
from hyperpod_kit.exit_codes import ExitCode
from hyperpod_kit.untrusted import terminal
from hyperpod_kit.untrusted.text import clean_one_line


def _flush_one_ended_job_as_root(args: argparse.Namespace, shm_folder: str, caller_uid: int) -> int:
    from hyperpod_kit.checkpoint.agent.flush import flush_handover

    if caller_uid != 0:
        raise UsageError(
            f"only root may end a job: this is uid {caller_uid}", hint="hyperpod-kit checkpoint flush --all"
        )
    ended, max_age = flush_handover.parse_ended_job(args.ended or args.hand_over), args.max_age * 3600.0
    if args.hand_over:
        return flush_handover.start_flush_and_await_announcement(
            ended, folder=shm_folder, max_age=max_age, say=terminal.print_stdout
        )
    return flush_handover.flush_job_until_saved(
        ended, folder=shm_folder, max_age=max_age, announcement_path=args.announce, say=terminal.print_stdout
    )


def flush_dead_trainers_memory(args: argparse.Namespace) -> int:
    """Save what dead trainers left in shared memory and free it. Raises HyperpodKitError."""
    from hyperpod_kit.checkpoint.agent.flush import flush, flush_users
    from hyperpod_kit.checkpoint.agent.shm import shm_paths

    folder, caller_uid = shm_paths.shared_memory_root(), shm_paths.node_uid()
    if args.ended or args.hand_over:
        return _flush_one_ended_job_as_root(args, folder, caller_uid)
    if caller_uid != 0 and args.uid not in (None, caller_uid):
        raise UsageError(
            f"--uid {args.uid} requires root: this is uid {caller_uid}", hint="hyperpod-kit checkpoint flush --all"
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
        terminal.print_json(document("checkpoint flush", {"runs": [outcome._asdict() for outcome in outcomes]}))
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


_COMMANDS = "hyperpod_kit.checkpoint.commands"

_ROOT = ArgumentSpec("root", "ROOT", "Checkpoint root: a directory or s3://BUCKET/PREFIX.")
_JSON = OptionSpec("--json", "Print JSON on stdout.")

CHECKPOINT = GroupSpec(
    "checkpoint",
    "List, verify, repair and prune checkpoints.",
    (
        CommandSpec(
            "ls",
            "List the checkpoints of a root, newest first; reads no data.",
            f"{_COMMANDS}.inspection:ls",
            arguments=(_ROOT,),
            options=(_JSON, OptionSpec("--limit", "Show the newest N, 0 for all; default: 50.", "N", int, default=50)),
            examples=("/fsx/alice/run1", "s3://my-bucket/run1 --limit 5 --json"),
        ),
        CommandSpec(
            "show",
            "Show the manifest and the files of a checkpoint; reads no data.",
            f"{_COMMANDS}.inspection:show",
            arguments=(_ROOT, ArgumentSpec("attempt", "CHECKPOINT", "Default: the newest committed one.", "?")),
            options=(_JSON, OptionSpec("--tensors", "Show where each tensor is stored.")),
            examples=("/fsx/alice/run1", "/fsx/alice/run1 --tensors  # of the newest"),
        ),
        CommandSpec(
            "get",
            "Write one tensor to a .safetensors or .npy file, verifying every byte.",
            f"{_COMMANDS}.cli:write_tensor_to_output_file",
            arguments=(_ROOT, ArgumentSpec("tensor", "TENSOR", "Name, as `show --tensors` shows it.")),
            options=(
                _JSON,
                OptionSpec("--attempt", "Checkpoint, as `ls` shows it; default: the newest valid one.", "CHECKPOINT"),
                OptionSpec("--out", "File to create, .safetensors or .npy.", "FILE", is_required=True),
            ),
            examples=("/fsx/alice/run1 model.head.weight --out head.npy",),
        ),
        CommandSpec(
            "verify",
            "Verify every byte of checkpoints. The exit code is 0 when all are valid, 1 when one is not, none "
            "exists, or RUN.json is damaged.",
            f"{_COMMANDS}.inspection:verify_checkpoints",
            arguments=(_ROOT, ArgumentSpec("attempts", "CHECKPOINT", "Default: all committed ones.", "*")),
            options=(_JSON,),
            examples=("/fsx/alice/run1", "/fsx/alice/run1 --json"),
        ),
        CommandSpec(
            "repair",
            "Rebuild a lost RUN.json and the lost manifests of checkpoints whose bytes are all verified. The exit "
            "code is 1 when the newest committed checkpoint cannot be rebuilt.",
            f"{_COMMANDS}.repair:repair",
            arguments=(_ROOT,),
            options=(
                _JSON,
                OptionSpec("--dry-run", "Show what would be written, and write nothing."),
                OptionSpec("--run-id", "Id of the run that owns the root, as an error message shows it.", "ID"),
            ),
            examples=(
                "/fsx/alice/run1 --dry-run",
                "/fsx/alice/run1 --run-id 4f2a  # if the root has checkpoints of several runs",
            ),
        ),
        CommandSpec(
            "prune",
            "Delete the checkpoints that the policy does not keep. The exit code is 1 when one could not be deleted.",
            f"{_COMMANDS}.keep:prune",
            arguments=(_ROOT,),
            options=(
                _JSON,
                *RETENTION_OPTIONS,
                OptionSpec("--dry-run", "Show what would be deleted, and delete nothing."),
                OptionSpec("--verify", "Verify every byte of the newest one before older ones are deleted."),
            ),
            examples=(
                "/fsx/alice/run1 --latest 3 --every-steps 1000 --dry-run",
                "/fsx/alice/run1 --latest 3 --best loss:2",
            ),
        ),
        CommandSpec(
            "pin",
            "Pin a checkpoint, so that no policy deletes it.",
            f"{_COMMANDS}.keep:pin",
            arguments=(_ROOT, ArgumentSpec("attempt", "CHECKPOINT", "Name, as `ls` shows it.")),
            options=(OptionSpec("--reason", "Reason, shown with the pin.", "REASON", default=""),),
            examples=("/fsx/alice/run1 CHECKPOINT --reason 'before the new data'  # CHECKPOINT as `ls` shows it",),
        ),
        CommandSpec(
            "unpin",
            "Remove the pin of a checkpoint.",
            f"{_COMMANDS}.keep:unpin",
            arguments=(_ROOT, ArgumentSpec("attempt", "CHECKPOINT", "Name, as `ls` shows it.")),
            examples=("/fsx/alice/run1 CHECKPOINT",),
        ),
        CommandSpec(
            "flush",
            "Save the captures that dead trainers left in shared memory, then free them. The exit code is 1 when "
            "one was not freed.",
            f"{_COMMANDS}.cli:flush_dead_trainers_memory",
            options=(
                _JSON,
                OptionSpec("--job", "Captures of this Slurm job.", "JOB"),
                OptionSpec("--all", "Captures of every ended job."),
                OptionSpec(
                    "--hand-over",
                    "As root: start a unit for the captures of one job (run by the Epilog).",
                    "JOB.RESTART.UID[.GID]",
                ),
                OptionSpec(
                    "--ended",
                    "As root: captures of one job; retry for an hour while there is progress or storage is away "
                    "(run by hyperpod-kit-flush@).",
                    "JOB.RESTART.UID[.GID]",
                ),
                OptionSpec(
                    "--announce",
                    "For --ended: file to create when the captures are announced on storage.",
                    "FILE",
                    default="",
                ),
                OptionSpec("--uid", "As root: only captures of this user (run by the Epilog).", "UID", int),
                OptionSpec("--gid", "As root: use this group instead of the user's primary group.", "GID", int),
                OptionSpec("--timeout", "Maximum seconds per user.", "TIMEOUT", float, default=45.0),
                OptionSpec(
                    "--max-age",
                    "Hours after which a capture that cannot be saved is dropped, with exit code 86.",
                    "MAX_AGE",
                    float,
                    default=24.0,
                ),
            ),
            exactly_one_of=("--job", "--all", "--hand-over", "--ended"),
            examples=("--job 4711", "--all --timeout 120"),
        ),
    ),
)


def main(argv: List[str]) -> int:
    """Run the command line and return its exit code, with errors on standard error."""
    return ending.run(lambda: run_command_raising_errors(argv))


def run_command_raising_errors(argv: List[str], group: GroupSpec = CHECKPOINT) -> int:
    """Run the command line and return its exit code, with errors raised. Raise HyperpodKitError."""
    try:
        command, args = parse_group(group, argv, "hyperpod-kit checkpoint")
    except SystemExit as end:
        return int(end.code or 0)

    function = import_object(command.run)  # before a child with the rights of another user, who may not read our files

    def work() -> int:
        try:
            return int(function(args))
        except BrokenPipeError:
            return ending.discard_stdout_and_return_code(0)  # it has seen enough (`ls | head`)

    root = getattr(args, "root", None)
    if root is not None and is_path(root):
        return ending.run_converting_os_to_kit_errors(
            lambda: ending.run_in_bounded_child_as_uid(work, root, _effective_user(command, root)),
            lambda err: _file_error_ending(err, args),
        )
    return ending.run_converting_os_to_kit_errors(work, lambda err: _file_error_ending(err, args))


def _effective_user(command: CommandSpec, root: str) -> Optional[int]:
    """Return the user as whom root runs the command: the root's owner, but for `get`, whose output belongs to
    whoever called it."""
    from hyperpod_kit.untrusted import owner  # not every command needs it

    if command.name == "get":
        return None
    return owner.uid_to_act_as_if_root(root)


def _file_error_ending(err: OSError, args: argparse.Namespace) -> ending.Ending:
    return ending.Ending(f"{err.filename or args.root}: {verify.describe_failure(err)}", None, ExitCode.ABSENT)


# `checkpoint get`: one tensor, for whoever has no torch.


def write_tensor_to_output_file(args: argparse.Namespace) -> int:
    """Write one tensor to a file and print what it is; 0 when written. Raise as `tensor_export.export_tensor`."""
    tensor = tensor_export.export_tensor(open_existing_root_as_owner(args), args.tensor, args.out, args.attempt)
    if args.json:
        terminal.print_json(document("checkpoint get", {**tensor._asdict(), "output": args.out}))
        return 0
    for checkpoint_id, reason in tensor.rejected:
        terminal.print_stderr(f"passed over {checkpoint_id}: {reason}")
    shape = " x ".join(map(str, tensor.shape)) or "one number"
    name = clean_one_line(tensor.name)
    terminal.print_stdout(
        f"{name} of {tensor.attempt}: {tensor.dtype}, {shape}, {format_byte_count(tensor.nbytes)} verified, in "
        f"{args.out}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(ending.run_program_ending_on_ctrl_c(lambda: main(sys.argv[1:])))
