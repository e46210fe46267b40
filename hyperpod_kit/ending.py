"""How a program of ours ends: an error becomes `error: …`, `hint: …` on standard error and an exit code.

Standard library only, Python 3.8: this file is part of the bundle. cli/terminal/command_ending.py adds what click
brings.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Callable, NamedTuple, Optional

from hyperpod_kit.errors import ConfigError, HyperpodKitError
from hyperpod_kit.exit_codes import ExitCode


class Ending(NamedTuple):
    """What failed, what to type next, and the exit code."""

    message: str
    hint: Optional[str]
    code: int


def ending_of_kit_error(error: HyperpodKitError) -> Ending:
    """Return message, hint and exit code of an error of ours; the findings of a configuration each on a line."""
    findings = error.findings if isinstance(error, ConfigError) else ()
    return Ending("\n  ".join([error.message, *findings]), error.hint, error.exit_code)


def restore_sigint_if_ignored() -> None:
    """Have SIGINT raise KeyboardInterrupt in this program, also where whoever started it had SIGINT ignored.

    A shell without job control has a command that it starts with `&` ignore SIGINT, and every child inherits that: of a
    script, a supervisor, a runner of CI. Ctrl-C then reaches the whole group of processes, and this program is to end.
    """
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def run_program_ending_on_ctrl_c(work: Callable[[], int]) -> int:
    """Run `work`, the whole of a program, and return its exit code. Ctrl-C ends it with a message instead of a
    stack trace."""
    try:
        restore_sigint_if_ignored()
        return work()
    except KeyboardInterrupt:
        pass
    from hyperpod_kit.untrusted import terminal

    terminal.print_stderr("stopped")
    return ExitCode.STOPPED


def os_error_ending_unless_reader_gone(error: OSError) -> Optional[Ending]:
    """Return the ending of an OSError for which a command has no message of its own: a directory that every
    machine is supposed to have, such as /dev/shm, is not there, or a place does not let this user in. None
    when the reader of standard output has gone."""
    if isinstance(error, BrokenPipeError) and is_stdout_reader_gone():
        return None
    text = error.strerror or str(error) or type(error).__name__
    return Ending(f"{error.filename}: {text}" if error.filename else text, None, ExitCode.ABSENT)


def run(
    work: Callable[[], int], to_ending: Callable[[OSError], Optional[Ending]] = os_error_ending_unless_reader_gone
) -> int:
    """Run `work` and return the exit code; an error is printed with its hint.

    `to_ending`: how an OSError ends the program; it is raised where that returns None.
    """
    try:
        return run_converting_os_to_kit_errors(work, to_ending)
    except HyperpodKitError as error:
        ending = ending_of_kit_error(error)
    except BrokenPipeError:
        if not is_stdout_reader_gone():
            raise
        return discard_stdout_and_return_code(ExitCode.READER_GONE)
    from hyperpod_kit.untrusted import terminal

    terminal.print_error_and_hint(ending.message, ending.hint)
    return ending.code


def run_converting_os_to_kit_errors(work: Callable[[], int], to_ending: Callable[[OSError], Optional[Ending]]) -> int:
    """Return the exit code of `work`, with errors of the system raised as HyperpodKitError, for a caller that
    prints them itself. Raises OSError where `to_ending` returns None."""
    try:
        return work()
    except OSError as error:
        ending = to_ending(error)
        if ending is None:
            raise
        kit_error = HyperpodKitError(ending.message, hint=ending.hint)
        kit_error.exit_code = ending.code
        raise kit_error from error


def run_in_bounded_child_as_uid(work: Callable[[], int], storage_root: str, uid: Optional[int] = None) -> int:
    """Return the exit code of `work`, run as that user, by default this process's: a root that hangs costs an
    error and not this process. Raises Unreachable, and as `work`."""
    from hyperpod_kit.untrusted import owner  # not every command needs it

    try:
        return int(owner.run_as_user_in_child(work, os.geteuid() if uid is None else uid, storage_root))
    except BrokenPipeError:
        return discard_stdout_and_return_code(0)


def is_stdout_reader_gone() -> bool:
    """Whether the reader of standard output has gone, which a broken connection to a server does not mean."""
    import select

    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
    except (AttributeError, OSError, ValueError):
        return False


def discard_stdout_and_return_code(code: int) -> int:
    """Discard what standard output still holds and return `code`: its reader has gone, and Python's flush at the
    end must not fail."""
    from hyperpod_kit.untrusted import terminal

    terminal.redirect_to_devnull(sys.stdout)
    return code
