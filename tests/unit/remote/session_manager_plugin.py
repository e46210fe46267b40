"""Stands in for session-manager-plugin, which cannot be had here: the same arguments and the same variable, and behind
them, in place of AWS's data channel, a real shell on a terminal of its own that echoes what is typed.

The token says how the session goes: see `main`.
"""

from __future__ import annotations

import json
import os
import pty
import select
import sys
import tty
from pathlib import Path


def main() -> int:
    if sys.argv[1:] == ["--version"]:
        print("1.2.707.0")
        return 0
    response, region, operation, profile, request, endpoint = sys.argv[1:]
    assert (response, region, operation, profile) == ("AWS_SSM_START_SESSION_RESPONSE", "us-east-1", "StartSession", "")
    token = json.loads(os.environ[response])
    assert json.loads(request)["Target"].startswith("sagemaker-cluster:") and endpoint.startswith("http")
    how, _, state = token["TokenValue"].partition("@")
    print(f"\nStarting session with SessionId: {token['SessionId']}")
    if how == "eof-once" and not Path(state).exists():
        Path(state).touch()
        print("Cannot perform start session: EOF")
        return 1
    if how == "eof":
        print("Cannot perform start session: EOF")
        return 1
    if how == "hang":
        while os.read(0, 4096):
            pass
        return 0
    if how == "babble":
        while True:
            os.write(1, b"# echo $ > " * 1000)
    return shell({"PS1": "" if how == "no-prompt" else "\x1b[1msh-5.2#\x1b[0m "})


def shell(environment: dict[str, str]) -> int:
    """Copy between our terminal and the shell's until the shell ends."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve("/bin/sh", ["sh", "-i"], {"PATH": os.environ["PATH"], **environment})
    tty.setraw(0)
    while True:
        ready, _, _ = select.select([0, terminal], [], [])
        try:
            if terminal in ready:
                os.write(1, os.read(terminal, 4096))
            if 0 in ready:
                os.write(terminal, os.read(0, 4096))
        except OSError:
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


if __name__ == "__main__":
    sys.exit(main())
