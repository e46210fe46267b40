"""`hyperpod-kit node …`: what units, Slurm's hooks and the admin's machine run on a node.

Exit codes: 0 ok, 1 found something wrong, 2 usage, 3 no bundle is installed here, or something cannot be reached.
Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Optional, Sequence

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
    from hyperpod_kit.command_line.program import parse_group
    from hyperpod_kit.node.commands.command_table import NODE

    command, args = parse_group(NODE, argv, "hyperpod-kit node")
    return command.call(args)


def query_peers_command(args: argparse.Namespace) -> int:
    from hyperpod_kit.node.peers import query

    return query.main()


def run_file_audit_command(args: argparse.Namespace) -> int:
    from hyperpod_kit.node.file_audit import supervisor

    return supervisor.supervise_audit(args.place, args.log)


def run_upkeep_command(args: argparse.Namespace) -> int:
    from hyperpod_kit.node.optional import upkeep

    return upkeep.run_upkeep_command()
