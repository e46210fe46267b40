"""The one way to run a command: a Runner, here or on a node, always with a deadline.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Dict, List, Mapping, Optional, Protocol, Sequence

from hyperpod_kit.errors import RunError, RunTimeout


@dataclass(frozen=True)
class Completed:
    """What a command left: exit code, standard output and standard error as text."""

    argv: Sequence[str]
    returncode: int
    stdout: str
    stderr: str


class Runner(Protocol):
    """Something a command can be run on: this machine, a node over ssh, a rehearsal."""

    target: str

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout: float = 60.0,
        check: bool = True,
        input: Optional[str] = None,
        env: Optional[Mapping[str, Optional[str]]] = None,
    ) -> Completed:
        """Run `argv` (no shell) and return what it left. `env`: beside our own environment, None: not there.

        Raises RunError when `check` and the exit code is not 0, RunTimeout after `timeout` seconds.
        """


def env_arguments(env: Optional[Mapping[str, Optional[str]]]) -> List[str]:
    """Return the changes of a Runner's `env` as arguments of env(1), for a command that inherits no environment
    of ours."""
    changes = env or {}
    unset = [word for key, value in changes.items() if value is None for word in ("-u", key)]
    assigned = [f"{key}={value}" for key, value in changes.items() if value is not None]
    return [*unset, *assigned]


class LocalRunner:
    """Runs commands on this machine, each in a process group of its own that is killed at the deadline."""

    target = ""

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout: float = 60.0,
        check: bool = True,
        input: Optional[str] = None,
        env: Optional[Mapping[str, Optional[str]]] = None,
    ) -> Completed:
        # Here: a health check that finds nothing wrong runs no command, and the import is a tenth of its cost.
        import signal
        import subprocess

        try:
            proc = subprocess.Popen(
                list(argv),
                stdin=subprocess.PIPE if input is not None else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                universal_newlines=True,
                errors="replace",
                env=_changed_environment(env),
                start_new_session=True,
            )
        except OSError as err:
            raise RunError(argv, 127, stderr=str(err)) from err
        try:
            out, err_text = proc.communicate(input, timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(proc.pid, signal.SIGKILL)
            # A child in D state ignores SIGKILL until the kernel lets go: abandon it, never wait for it.
            try:
                out, err_text = proc.communicate(timeout=1.0)
            except subprocess.TimeoutExpired:
                out, err_text = "", ""
            raise RunTimeout(
                argv, -signal.SIGKILL, out, err_text or f"it did not end within {timeout:g} s and was killed"
            ) from None
        if check and proc.returncode != 0:
            raise RunError(argv, proc.returncode, out, err_text)
        return Completed(tuple(argv), proc.returncode, out, err_text)


def _changed_environment(changes: Optional[Mapping[str, Optional[str]]]) -> Optional[Dict[str, str]]:
    if changes is None:
        return None
    return {name: value for name, value in {**os.environ, **changes}.items() if value is not None}
