"""How a program of ours ends: an error becomes `error: …`, `hint: …` on standard error and an exit code.

Standard library only, Python 3.8: this file is part of the bundle. cli/command_ending.py adds what click brings.
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


def ending_of(error: HyperpodKitError) -> Ending:
    """Of an error of ours; the findings of a configuration each on a line."""
    findings = error.findings if isinstance(error, ConfigError) else ()
    return Ending("\n  ".join([error.message, *findings]), error.hint, error.exit_code)


def enable_interrupts() -> None:
    """Have SIGINT raise KeyboardInterrupt in this program, also where whoever started it had SIGINT ignored.

    A shell without job control has a command that it starts with `&` ignore SIGINT, and every child inherits that: of a
    script, a supervisor, a runner of CI. Ctrl-C then reaches the whole group of processes, and this program is to end.
    """
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def program(work: Callable[[], int]) -> int:
    """The exit code of `work`, the whole of a program: Ctrl-C ends it with a word instead of a stack trace."""
    try:
        enable_interrupts()
        return work()
    except KeyboardInterrupt:
        pass
    from hyperpod_kit.untrusted import terminal

    terminal.say("stopped")
    return ExitCode.STOPPED


def of_system(error: OSError) -> Optional[Ending]:
    """Of an error of the operating system for which a command has no words of its own: a directory that every machine
    is supposed to have, such as /dev/shm, is not there, or a place does not let this user in. None for a reader that
    has gone."""
    if isinstance(error, BrokenPipeError) and reader_gone():
        return None
    text = error.strerror or str(error) or type(error).__name__
    return Ending(f"{error.filename}: {text}" if error.filename else text, None, ExitCode.ABSENT)


def run(work: Callable[[], int], system: Callable[[OSError], Optional[Ending]] = of_system) -> int:
    """The exit code of `work`, whose errors are said. `system`: how an error of the system ends it, None: raise it."""
    try:
        return raised(work, system)
    except HyperpodKitError as error:
        ending = ending_of(error)
    except BrokenPipeError:
        if not reader_gone():
            raise
        return without_reader(ExitCode.READER_GONE)
    from hyperpod_kit.untrusted import terminal

    terminal.error(ending.message, ending.hint)
    return ending.code


def raised(work: Callable[[], int], system: Callable[[OSError], Optional[Ending]]) -> int:
    """The exit code of `work`, with errors of the system as errors of ours: for who says them himself, and may be asked
    for the stack trace. Raises HyperpodKitError, and OSError where `system` knows nothing of it."""
    try:
        return work()
    except OSError as error:
        ending = system(error)
        if ending is None:
            raise
        kit_error = HyperpodKitError(ending.message, hint=ending.hint)
        kit_error.exit_code = ending.code
        raise kit_error from error


def bounded(work: Callable[[], int], root: str, uid: Optional[int] = None) -> int:
    """The exit code of `work`, as that user, by default this process's: a root that hangs costs an error and not this
    process. Raises Unreachable, and as `work`."""
    from hyperpod_kit.untrusted import owner  # not every command needs it

    try:
        return int(owner.run_as_user(work, os.geteuid() if uid is None else uid, root))
    except BrokenPipeError:
        return without_reader(0)


def reader_gone() -> bool:
    """Whether nobody reads standard output any more, which a broken connection to a server does not mean."""
    import select

    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
    except (AttributeError, OSError, ValueError):
        return False


def without_reader(code: int) -> int:
    """`code`, when nobody reads standard output any more: Python flushes it at its end and must not complain then."""
    from hyperpod_kit.untrusted import terminal

    terminal.discard(sys.stdout)
    return code
