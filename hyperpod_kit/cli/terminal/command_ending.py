"""How a command line ends: every exception becomes a sentence, a hint and an exit code; none becomes a stack trace.

What vendored programs share is in hyperpod_kit/ending.py; here are click's exceptions, defects and missing extras too.
"""

from __future__ import annotations

import io
import os
import sys
from typing import Any, Callable, Optional, Tuple

import click

from hyperpod_kit.ending import discard_stdout_and_return_code, ending_of_kit_error, is_stdout_reader_gone
from hyperpod_kit.errors import HyperpodKitError
from hyperpod_kit.exit_codes import ExitCode
from hyperpod_kit.extras import DISTRIBUTIONS, requirements_install_command

ADMIN_MODULES = ("boto3", "botocore", "jinja2", "paramiko", "yaml")
"""What an admin's installation has and a training job's has not."""


def run_reporting_errors(call: Callable[[], Any], *, with_traceback: bool) -> int:
    """Run `call` (a click command with standalone_mode=False), report errors on stderr, and return the
    exit code.

    `with_traceback`: print stack traces too.
    """
    try:
        result = call()
        if sys.stdout is not None:  # closed by who called us
            sys.stdout.flush()
        if isinstance(result, int):
            return result
        return 0
    except SystemExit as err:
        return _report_system_exit(err)
    except BaseException as err:
        if isinstance(err, BrokenPipeError) and is_stdout_reader_gone():
            return discard_stdout_and_return_code(ExitCode.READER_GONE)
        if with_traceback:
            import traceback

            _print_to_stderr(traceback.format_exc())
        return _report_error(err)


def _report_error(err: BaseException) -> int:
    """Print the sentence for an exception on stderr and return the exit code; raise it again when it is
    no Exception."""
    if isinstance(err, click.exceptions.Abort) and isinstance(err.__cause__ or err.__context__, EOFError):
        return _print_error_and_return_code(
            "cannot prompt for an answer: standard input has ended",
            "give the answers as options; see --help",
            ExitCode.USAGE,
        )
    if isinstance(err, (click.exceptions.Abort, KeyboardInterrupt)):
        _print_to_stderr("stopped")
        return ExitCode.STOPPED
    if isinstance(err, click.ClickException):
        usage = io.StringIO()
        err.show(usage)
        _print_to_stderr(usage.getvalue().rstrip("\n"))
        return err.exit_code
    if isinstance(err, HyperpodKitError):
        return _print_error_and_return_code(*ending_of_kit_error(err))
    if isinstance(err, Exception):
        return _print_error_and_return_code(*_describe_foreign_error(err), ExitCode.ABSENT)
    raise err


def _describe_foreign_error(err: Exception) -> Tuple[str, Optional[str]]:
    """Return message and hint for an exception that is not a HyperpodKitError."""
    if isinstance(err, ModuleNotFoundError) and (err.name or "").split(".")[0] in ADMIN_MODULES:
        return f"this command needs {err.name}, which is not installed", requirements_install_command("admin")
    if isinstance(err, OSError):
        where = ""
        if err.filename:
            where = f": {err.filename}"
        return f"{err.strerror or err}{where}", None
    return (
        f"a defect of hyperpod-kit: {type(err).__name__}: {err}{_innermost_kit_location(err)}",
        "repeat the command as hyperpod-kit --debug … to get the stack trace for a report",
    )


def _print_error_and_return_code(message: str, hint: Optional[str], code: int) -> int:
    from hyperpod_kit.cli.terminal.output import print_error

    print_error(message, hint)
    return code


def _print_to_stderr(text: str) -> None:
    # Only when there is something to say: `--help` loads nothing more than it shows.
    from hyperpod_kit.cli.terminal.output import print_to_stderr

    print_to_stderr(text)


def _innermost_kit_location(err: BaseException) -> str:
    """Return ` (FILE:LINE)` of the innermost frame in the kit's own code, "" for none."""
    last = err.__traceback__
    location = ""
    while last is not None:
        path = _path_below_package(last.tb_frame.f_code.co_filename)
        if path is not None:
            location = f" ({path}:{last.tb_lineno})"
        last = last.tb_next
    return location


def _path_below_package(file: str) -> Optional[str]:
    """Return the path of a file below the kit's package, after the package's name for another
    distribution's; None for foreign files."""
    for package in DISTRIBUTIONS:
        (_, separator, path) = file.rpartition(f"{os.sep}{package}{os.sep}")
        if separator:
            return f"{package}/{path}"
    (_, separator, path) = file.rpartition(f"{os.sep}hyperpod_kit{os.sep}")
    if separator:
        return path
    return None


def _report_system_exit(err: SystemExit) -> int:
    if isinstance(err.code, str):
        _print_to_stderr(err.code)
    if isinstance(err.code, int):
        return err.code
    if err.code is None:
        return 0
    return 1
