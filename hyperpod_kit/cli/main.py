"""The command line: where it begins. table.py has the commands, terminal/command_ending.py turns errors into sentences
and exit codes."""

from __future__ import annotations

import gc
import os
import sys
from typing import Optional, Sequence

from hyperpod_kit.ending import restore_sigint_if_ignored
from hyperpod_kit.exit_codes import ExitCode

REQUIRED = ("click", "rich")
"""What the command line imports of others' packages wherever it runs."""

FOREIGN_LINES = (("job", "submit"), ("connect",))
"""Commands that pass on words in which no `--` need stand."""


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Run the program and exit. `argv`: words after the program's name."""
    restore_sigint_if_ignored()
    try:
        _import_commands_without_collections()
    except ModuleNotFoundError as error:
        if error.name not in REQUIRED:
            raise
        _print_missing_package(error.name)
        sys.exit(ExitCode.ABSENT)
    if argv is None:
        argv = sys.argv[1:]
    code = run_command_line(list(argv))
    if code == ExitCode.STOPPED:
        # Threads that still wait for AWS or a node would hold the prompt for a minute. What they do is safe to cut off.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    # At its end the interpreter collects cycles among all objects, a tenth of a second with botocore's models loaded.
    gc.freeze()
    sys.exit(code)


def _print_missing_package(name: str) -> None:
    """Print which package this environment lacks; without click there is no other printer."""
    from hyperpod_kit.untrusted import terminal

    terminal.print_stderr(f"error: the Python environment {sys.prefix} has no {name}, which hyperpod-kit needs")
    terminal.print_stderr(
        f"hint: add {' and '.join(REQUIRED)} to its requirements; on a node, "
        "/opt/hyperpod-kit/current/bin/hyperpod-kit runs without them"
    )


def _import_commands_without_collections() -> None:
    """Import click and the table of commands. What an import makes stays: the garbage collector would take 5 of 45 ms
    to free nothing of it."""
    gc.disable()
    import hyperpod_kit.cli.table
    import hyperpod_kit.cli.terminal.command_ending  # noqa: F401

    gc.freeze()
    gc.enable()


def run_command_line(arguments: Sequence[str]) -> int:
    """Run one command line; its exit code."""
    from hyperpod_kit.cli.table import PROGRAM, cli
    from hyperpod_kit.cli.terminal.command_ending import run_reporting_errors

    debug, remaining = _extract_debug_flag(arguments)
    return run_reporting_errors(
        lambda: cli.main(remaining, prog_name=PROGRAM, standalone_mode=False), with_traceback=debug
    )


def _extract_debug_flag(arguments: Sequence[str]) -> tuple[bool, list[str]]:
    """Return whether --debug is among our own arguments, and the arguments without it.

    What stands behind `--`, or in a line for sbatch, belongs to another program and is left as it is.
    """
    if "--" in arguments:
        foreign = arguments.index("--")
    else:
        foreign = len(arguments)
    for command in FOREIGN_LINES:
        if list(arguments[: len(command)]) == list(command):
            foreign = 0
    kept = [word for index, word in enumerate(arguments) if index >= foreign or word != "--debug"]
    return len(kept) < len(arguments), kept


if __name__ == "__main__":
    main()
