"""What a command prints."""

from __future__ import annotations

import subprocess
from typing import Sequence


def output(argv: Sequence[str], *, check: bool = True, timeout: float = 60) -> str:
    """Standard output of a command; with `check` False, what it printed on both."""
    done = subprocess.run(
        argv, text=True, timeout=timeout, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert done.returncode == 0 or not check, f"{argv} exited {done.returncode}: {done.stdout}{done.stderr}"
    return done.stdout if check else done.stdout + done.stderr
