"""`hyperpod-kit node …`: what units, Slurm's hooks and the admin's machine run on a node.

Exit codes: 0 ok, 1 found something wrong, 2 usage, 3 no bundle is installed here, or something cannot be reached.
Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Callable, Optional, Sequence

from hyperpod_kit import ending

if TYPE_CHECKING:
    import argparse


STORAGE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
"""Errors of the system that are about a place and not about this program."""


def run(argv: Sequence[str]) -> int:
    """Run `main`, with errors printed on standard error and turned into the exit code."""
    return ending.run(lambda: main(argv), _ending_for_os_error)


def _ending_for_os_error(error: OSError) -> Optional[ending.Ending]:
    if error.errno not in STORAGE_ERRORS:
        return ending.os_error_ending_unless_reader_gone(error)
    directory = os.path.dirname(str(error.filename or "/run/hyperpod-kit/"))
    return ending.Ending(f"{error.filename or directory}: {error.strerror}", f"df -h {directory}; df -i {directory}", 1)


def main(argv: Sequence[str]) -> int:
    """Run the `hyperpod-kit node` command that argv names, and return its exit code. Raises HyperpodKitError."""
    if list(argv) == ["health"]:
        # What the timer runs for as long as a mount does not serve: a parser alone would be a tenth of its cost.
        from hyperpod_kit.node.commands.mount_commands import run_health_check_and_print

        return run_health_check_and_print(as_json=False)
    args = build_parser().parse_args(list(argv))
    command: Callable[[argparse.Namespace], int] = args.command
    return command(args)


def query_peers_command(args: argparse.Namespace) -> int:
    from hyperpod_kit.node.peers import query

    return query.main()


def print_audited_actions_command(args: argparse.Namespace) -> int:
    from hyperpod_kit.node.commands import actions

    return actions.print_audited_actions_command(args)


def run_file_audit_command(args: argparse.Namespace) -> int:
    from hyperpod_kit.node.file_audit import supervisor

    return supervisor.supervise_audit(args.place, args.log)


def run_upkeep_command(args: argparse.Namespace) -> int:
    from hyperpod_kit.node.optional import upkeep

    return upkeep.run_upkeep_command()


def check_devices_command(args: argparse.Namespace) -> int:
    from hyperpod_kit.node.devices import commands

    return commands.check_devices_command(args)


def check_slurm_command(args: argparse.Namespace) -> int:
    from hyperpod_kit.node.slurm.guard import commands

    return commands.check_slurm_command(args)


def build_parser() -> argparse.ArgumentParser:
    import argparse

    from hyperpod_kit.model.states import LIFECYCLE_MODES
    from hyperpod_kit.node.commands import creation_commands as creation
    from hyperpod_kit.node.commands import mount_commands as mounts

    parser = argparse.ArgumentParser(prog="hyperpod-kit node", description="Work on this node.")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def add(
        name: str, function: Callable[[argparse.Namespace], int], help: str, *examples: str
    ) -> argparse.ArgumentParser:
        epilog = "\n  ".join(["Examples:", *(f"hyperpod-kit node {line}" for line in examples or (name,))])
        sub = commands.add_parser(
            name,
            help=help,
            description=help[0].upper() + help[1:] + ".",
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        sub.set_defaults(command=function)
        return sub

    def as_json(sub: argparse.ArgumentParser) -> argparse.ArgumentParser:
        sub.add_argument("--json", action="store_true", help="data on standard output, words on standard error")
        return sub

    def in_mode(sub: argparse.ArgumentParser) -> argparse.ArgumentParser:
        sub.add_argument("--mode", choices=LIFECYCLE_MODES, help="default: what the bundle was made for")
        return sub

    as_json(add("facts", creation.facts_command, "who this node is, read anew", "facts --json"))

    def with_choice(sub: argparse.ArgumentParser) -> argparse.ArgumentParser:
        sub.add_argument(
            "--slurm-state",
            choices=("shared", "own"),
            help="which copy of Slurm's state goes on, where their ages do not tell; the other one is kept aside",
        )
        return sub

    sub = add(
        "plan",
        creation.plan_command,
        "what apply would do now; changes nothing",
        "plan",
        "plan --mode on_create --json",
    )
    with_choice(in_mode(as_json(sub)))
    sub = add("apply", creation.apply_command, "make this node what the bundle says", "apply --dry-run", "apply")
    with_choice(in_mode(as_json(sub)))
    sub.add_argument("--dry-run", action="store_true", help="as plan: say it, change nothing")
    sub = as_json(
        add(
            "mounts",
            mounts.check_mounts_or_run_action_command,
            "check the mounts now; or `mounts ensure|prepare|await|clear NAME`",
            "mounts",
            "mounts fsx --json",
            "mounts ensure fsx  # mount it, once",
        )
    )
    sub.add_argument("names", nargs="*", metavar="NAME")
    as_json(
        add(
            "health",
            mounts.run_health_check_command,
            "check all mounts, count, order repairs: what the timer runs",
            "health --json",
        )
    )
    add(
        "repair", mounts.repair_mount_command, "repair one mount now: what the timer orders", "repair fsx"
    ).add_argument("name")
    add("drain", mounts.update_slurm_drain_command, "tell Slurm whether the mounts serve: what the timer orders")
    add(
        "slurm-state",
        creation.keep_slurm_state_lease_command,
        "keep Slurm's shared state this machine's alone: a unit's",
    )
    add(
        "memory",
        mounts.clean_up_memory_command,
        "save and free the shared memory that ended jobs left: what a timer runs",
    )
    add("upkeep", run_upkeep_command, "keep up what optional steps want done again and again: what a timer runs")
    sub = as_json(
        add(
            "devices",
            check_devices_command,
            "look at the GPUs and EFA devices now",
            "devices",
            "devices --dcgm --json",
            "devices --count  # what the timer runs",
        )
    )
    sub.add_argument("--dcgm", action="store_true", help="run `dcgmi diag -r 1` too, as the gate may")
    sub.add_argument("--count", action="store_true", help="count what is found, tell Slurm, leave metrics")
    sub = as_json(
        add(
            "slurm",
            check_slurm_command,
            "look at Slurm on this node now",
            "slurm",
            "slurm --json",
            "slurm --mend  # what the timer runs",
        )
    )
    sub.add_argument(
        "--mend", action="store_true", help="put back what is the kit's, keep what is found, leave metrics"
    )
    add("secrets", creation.secrets_command, "fetch this node's secrets: what their unit runs at boot")
    sub = as_json(
        add(
            "actions",
            print_audited_actions_command,
            "what was done here with root's rights to what is another's",
            "actions",
            "actions --since 2h --json",
        )
    )
    sub.add_argument("--since", default="1d", metavar="WHEN", help="45s, 30m, 2h, 3d ago (default: 1d), or @SECONDS")
    sub = add(
        "audit",
        run_file_audit_command,
        "who does what to which file of a mount, until it is ended; off unless it is started",
        "audit /fsx --log /var/lib/hyperpod-kit/audit.jsonl",
    )
    sub.add_argument("place", metavar="MOUNT")
    sub.add_argument("--log", required=True, metavar="FILE", help="lines are added to it; on another file system")
    add("gate", mounts.prolog_gate_command, "may a job start here? (Prolog)")
    add("ask", query_peers_command, "ask other nodes for their mounts: what validate-mounts --via controller runs here")
    return parser
