"""A mount namespace with a view of this host of its own, which lasts as long as the object."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import List, Sequence


class MountRoot:
    """`script` mounts what is to be seen; it is run with `arguments`, says `ready` last, and stays."""

    def __init__(self, script: str, *arguments: str) -> None:
        self._holder = subprocess.Popen(
            ["unshare", "--mount", "--", "sh", "-c", script + "echo ready\nread -r end\n", "sh", *arguments],
            env={**os.environ, "PATH": os.environ["PATH"] + ":/usr/sbin:/sbin"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._holder.stdout and self._holder.stderr
        if self._holder.stdout.readline() != "ready\n":
            raise AssertionError(f"{arguments} cannot be laid over this host: {self._holder.stderr.read()}")

    def argv(self, command: Sequence[str], cwd: Path) -> List[str]:
        """The words that run a command there, in a directory there; the process is the command's own."""
        return ["nsenter", "-t", str(self._holder.pid), "-m", f"--wdns={cwd}", "--", *command]

    def close(self) -> None:
        """The mounts go with the last process that runs there."""
        self._holder.kill()
        self._holder.communicate(timeout=10)
