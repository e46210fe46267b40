"""How a command line ends: every exception becomes a sentence, a hint and an exit code; none becomes a stack trace.

What vendored programs share is in hyperpod_kit/ending.py; here are click's exceptions, defects and missing extras too.
"""

from __future__ import annotations

import io
import os
import sys
from typing import Any, Callable, Optional, Tuple

import click

from hyperpod_kit.ending import ending_of, reader_gone, without_reader
from hyperpod_kit.errors import HyperpodKitError
from hyperpod_kit.exit_codes import ExitCode
from hyperpod_kit.extras import DISTRIBUTIONS, install_command

ADMIN_MODULES = ("boto3", "botocore", "jinja2", "paramiko", "yaml")
"""What an admin's installation has and a training job's has not."""


def exit_code_of(call: Callable[[], Any], *, debug: bool) -> int:
    """Run `call` (a click command with standalone_mode=False) and return the exit code. `debug`: stack traces too."""
    try:
        result = call()
        if sys.stdout is not None:  # closed by who called us
            sys.stdout.flush()
        if isinstance(result, int):
            return result
        return 0
    except SystemExit as err:
        return _exit_code(err)
    except BaseException as err:
        if isinstance(err, BrokenPipeError) and reader_gone():
            return without_reader(ExitCode.READER_GONE)
        if debug:
            import traceback

            _say(traceback.format_exc())
        return _reported(err)


def _reported(err: BaseException) -> int:
    """The exit code, once the sentence for it is on standard error."""
    if isinstance(err, click.exceptions.Abort) and isinstance(err.__cause__ or err.__context__, EOFError):
        return _error("nobody is here to answer that", "the same as options: --help names them", ExitCode.USAGE)
    if isinstance(err, (click.exceptions.Abort, KeyboardInterrupt)):
        _say("stopped")
        return ExitCode.STOPPED
    if isinstance(err, click.ClickException):
        usage = io.StringIO()
        err.show(usage)
        _say(usage.getvalue().rstrip("\n"))
        return err.exit_code
    if isinstance(err, HyperpodKitError):
        return _error(*ending_of(err))
    if isinstance(err, Exception):
        return _error(*_of_foreign(err), ExitCode.ABSENT)
    raise err


def _of_foreign(err: Exception) -> Tuple[str, Optional[str]]:
    """Message and hint of an error that is none of ours."""
    if isinstance(err, ModuleNotFoundError) and (err.name or "").split(".")[0] in ADMIN_MODULES:
        return f"this command needs {err.name}, which is not installed", install_command("admin")
    if isinstance(err, OSError):
        where = ""
        if err.filename:
            where = f": {err.filename}"
        return f"{err.strerror or err}{where}", None
    return (
        f"a defect of hyperpod-kit: {type(err).__name__}: {err}{_source_location(err)}",
        "hyperpod-kit --debug, and the same words again, shows the stack trace for a report",
    )


def _error(message: str, hint: Optional[str], code: int) -> int:
    from hyperpod_kit.cli.output import error

    error(message, hint)
    return code


def _say(text: str) -> None:
    # Only when there is something to say: `--help` loads nothing more than it shows.
    from hyperpod_kit.cli.output import say

    say(text)


def _source_location(err: BaseException) -> str:
    """The innermost line of ours that it came through."""
    last = err.__traceback__
    location = ""
    while last is not None:
        path = _path_of_ours(last.tb_frame.f_code.co_filename)
        if path is not None:
            location = f" ({path}:{last.tb_lineno})"
        last = last.tb_next
    return location


def _path_of_ours(file: str) -> Optional[str]:
    """The path of a file below its package, with that one's name where it is of another distribution."""
    for package in DISTRIBUTIONS:
        (_, separator, path) = file.rpartition(f"{os.sep}{package}{os.sep}")
        if separator:
            return f"{package}/{path}"
    (_, separator, path) = file.rpartition(f"{os.sep}hyperpod_kit{os.sep}")
    if separator:
        return path
    return None


def _exit_code(err: SystemExit) -> int:
    if isinstance(err.code, str):
        _say(err.code)
    if isinstance(err.code, int):
        return err.code
    if err.code is None:
        return 0
    return 1
