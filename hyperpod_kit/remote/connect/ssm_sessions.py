"""One command on a node by an SSM session, with the pace and the patience that AWS's sessions need."""

from __future__ import annotations

import base64
import binascii
import os
import pty
import re
import secrets
import shlex
import signal
import subprocess
import time
from contextlib import suppress
from typing import Callable, Mapping, NamedTuple, Optional, Protocol, Sequence

from hyperpod_kit.errors import RunError, RunTimeout, Unreachable
from hyperpod_kit.remote.connect.deadlines import Deadlines
from hyperpod_kit.remote.report_parser import last_line_or_nothing_word
from hyperpod_kit.remote.target import NodeTarget
from hyperpod_kit.run import Completed
from hyperpod_kit.system.readable import wait_until_readable
from hyperpod_kit.system.token_bucket import TokenBucket

RATE = 3.0
"""StartSession's quota: calls a second, of the whole account."""

TRIES = 3
"""A session may end with "Cannot perform start session: EOF" for no reason."""

OUTPUT_LIMIT = 8 << 20
"""Bytes of a session, which has its answer in base64, that are too many."""


class SsmSession(NamedTuple):
    """A session that was begun. `end`: ends it on AWS's side when nobody has used it up."""

    start: Start
    end: Callable[[], None]


class SsmSessions:
    """`begin`: StartSession for a node; raises AwsError or Unreachable."""

    def __init__(self, begin: Callable[[NodeTarget], SsmSession], bucket: Optional[TokenBucket] = None) -> None:
        self._begin = begin
        self._bucket = bucket or TokenBucket(RATE)
        self._deadlines = Deadlines()
        self._stopped = False

    def stop(self) -> None:
        """End all sessions, after Ctrl-C."""
        self._stopped = True
        self._deadlines.expire_present_and_later()

    def run(self, target: NodeTarget, argv: Sequence[str], *, timeout: float, limit: int = OUTPUT_LIMIT) -> Completed:
        """Return the standard output and exit code; standard error is left there.

        Raises AwsError, Unreachable when no session leads to an answer, RunTimeout after `timeout` seconds of one.
        """
        last = Unreachable("not tried")
        for _ in range(TRIES):
            self._bucket.wait_for_one_token_and_charge()
            if self._stopped:
                break
            session = self._begin(target)
            try:
                return run_in_shell(
                    session.start,
                    argv,
                    deadlines=self._deadlines,
                    timeout=timeout,
                    limit=limit,
                    target=target.instance_id,
                )
            except RunTimeout:
                session.end()
                raise
            except Unreachable as err:
                session.end()
                last = err
        raise last


class SsmRunner:
    """A Runner on one node, a session for each command."""

    def __init__(self, node: NodeTarget, sessions: SsmSessions) -> None:
        self.target = node.instance_id
        self._node, self._sessions = node, sessions

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout: float = 60.0,
        check: bool = True,
        input: Optional[str] = None,
        env: Optional[Mapping[str, Optional[str]]] = None,
    ) -> Completed:
        """Run a command (see Runner); a session takes neither input nor environment.

        Raises AwsError and Unreachable too.
        """
        if input is not None or env:
            raise ValueError("a session takes neither input nor environment")
        done = self._sessions.run(self._node, argv, timeout=timeout)
        if check and done.returncode != 0:
            raise RunError(argv, done.returncode, done.stdout, done.stderr, target=self.target)
        return done


# One command in a shell of an SSM session: session-manager-plugin on a terminal of its own, as if somebody typed.
#
# A session is a terminal and nothing more: it echoes, changes line ends, cuts long input lines, and knows no exit
# code. So one short line is typed, which holds the script in base64; the answer comes back in base64 between two
# marks that no echo can contain. Sources: notes of AWS's own engineers on HyperPod nodes (3.5 kB a line, spurious EOF
# at the start).

LONGEST_LINE = 3000
"""Bytes that can be typed in one line."""

PROMPT_WITHIN = 3.0
"""Seconds to wait for a prompt; some shells show none."""

_PROMPT = re.compile(rb"[$#>%] ?(\x1b\[[0-9;?]*[a-zA-Z])*$")


class Start(Protocol):
    """The plugin with a session's token: cluster.session.Program."""

    @property
    def argv(self) -> tuple[str, ...]: ...

    @property
    def environment(self) -> Mapping[str, str]: ...


def run_in_shell(
    start: Start, argv: Sequence[str], *, deadlines: Deadlines, timeout: float, limit: int, target: str
) -> Completed:
    """Run `argv` in the session's shell; its standard output and exit code, its standard error is left there.

    `timeout`: seconds for all of it; `limit`: bytes of output that are too many; `deadlines`: ends it with everything
    else after Ctrl-C. Raises Unreachable when the session ends before the answer, RunTimeout.
    """
    marker = f"hpk{secrets.token_hex(8)}"
    typed = _encode_command_line(argv, marker)
    terminal, plugin_terminal = pty.openpty()
    try:
        plugin = subprocess.Popen(
            start.argv,
            stdin=plugin_terminal,
            stdout=plugin_terminal,
            stderr=plugin_terminal,
            env={**os.environ, **start.environment},
            start_new_session=True,
        )
    except OSError as err:
        os.close(terminal)
        raise Unreachable(f"{start.argv[0]} cannot be started: {err.strerror}") from err
    finally:
        os.close(plugin_terminal)
    try:
        with deadlines.within(timeout + 1, lambda: _signal_process_group(plugin, signal.SIGTERM)):
            text = _type_and_read_output(terminal, typed, marker, time.monotonic() + timeout, limit)
    finally:
        os.close(terminal)
        _wait_or_kill(plugin)
    done = _parse_output(text, marker)
    if done is not None:
        return Completed(tuple(argv), done[1], done[0], "")
    last_output = last_line_or_nothing_word(text.decode(errors="replace"))
    if len(text) > limit:
        raise Unreachable(f"the session of {target} printed more than {limit >> 10} KiB")
    if text.endswith(_TIMED_OUT):
        raise RunTimeout(argv, -9, "", f"it did not end within {timeout:g} s", target=target)
    raise Unreachable(f"the session of {target} ended before the answer: {last_output}")


_TIMED_OUT = b"\0late"


def _encode_command_line(argv: Sequence[str], marker: str) -> bytes:
    script = (
        f"said=$({shlex.join(argv)} 2>/dev/null </dev/null); code=$?; "
        f'echo "{marker}-begin"; printf %s "$said" | base64; echo "{marker}-end-$code"'
    )
    typed = f" echo {base64.b64encode(script.encode()).decode()} | base64 -d | sh; exit\n".encode()
    if len(typed) > LONGEST_LINE:
        raise ValueError(f"the command is too long for a terminal's line: {len(typed)} bytes")
    return typed


def _type_and_read_output(terminal: int, typed: bytes, marker: str, until: float, limit: int) -> bytes:
    """Type the command and return everything that came until the last marker, the end, the deadline or the limit."""
    text = b""
    sent = False
    prompt_until = min(until, time.monotonic() + PROMPT_WITHIN)
    end = re.compile(rf"{marker}-end-\d+\s".encode())
    while not end.search(text, max(0, len(text) - 70000)) and len(text) <= limit:
        if not sent and (_PROMPT.search(text[-64:]) or time.monotonic() >= prompt_until):
            os.write(terminal, typed)
            sent = True
        remaining = (until if sent else prompt_until) - time.monotonic()
        if remaining <= 0 and sent:
            return text + _TIMED_OUT
        if not wait_until_readable([terminal], remaining):
            continue
        try:
            chunk = os.read(terminal, 65536)
        except OSError:  # EIO: the plugin has gone, and nobody holds the other end
            chunk = b""
        if not chunk:
            return text
        text += chunk
    return text


def _parse_output(text: bytes, marker: str) -> Optional[tuple[str, int]]:
    """Return (output, exit code) of the command; None when they are not whole."""
    match = re.search(rf"{marker}-begin\s(.*?){marker}-end-(\d+)\s".encode(), text, re.DOTALL)
    if match is None:
        return None
    try:
        return base64.b64decode(b"".join(match[1].split()), validate=True).decode(errors="replace"), int(match[2])
    except (binascii.Error, ValueError):
        return None


def _wait_or_kill(plugin: subprocess.Popen[bytes]) -> None:
    """Wait for the plugin, which ends with the session's shell; terminate or kill one that stays."""
    for number in (None, signal.SIGTERM, signal.SIGKILL):
        if number is not None:
            _signal_process_group(plugin, number)
        with suppress(subprocess.TimeoutExpired):
            plugin.wait(2.0 if number != signal.SIGKILL else None)
            return


def _signal_process_group(plugin: subprocess.Popen[bytes], number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(plugin.pid, number)
