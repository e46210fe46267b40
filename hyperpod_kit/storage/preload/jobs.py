"""The preload as a job of its own on CPU nodes, and the job with the GPUs behind it.

`afterok` with `--kill-on-invalid-dep=yes`: what waits for a preload that failed is cancelled, and no GPU was held.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import Any, Optional, Sequence

from hyperpod_kit.job import submit
from hyperpod_kit.run import Runner
from hyperpod_kit.storage.preload.hsm import PreloadError
from hyperpod_kit.untrusted import by_descriptor

SECONDS = 60.0
_NUMBER = re.compile(r"^(\d+)(?:;\S*)?$", re.M)


@dataclass(frozen=True)
class Submitted:
    """Both jobs; `job` is None where only the preload was asked for."""

    preload: str
    job: Optional[str]

    def to_json(self) -> dict[str, Any]:
        """Job ids."""
        return vars(self).copy()


def preload_argv(words: Sequence[str], partition: Optional[str], more: Sequence[str]) -> list[str]:
    """sbatch for the preload. `words`: the command to run there; `more`: further words for sbatch."""
    where = [f"--partition={partition}"] if partition else []
    # Brought again after a node was lost: what is here already costs a look.
    own = ["--parsable", "--job-name=preload", "--nodes=1", "--ntasks=1", "--requeue", "--open-mode=append"]
    return ["sbatch", *own, *where, *more, f"--wrap=exec {shlex.join(words)}"]


def behind_argv(words: Sequence[str], preload: str) -> tuple[list[str], Optional[str]]:
    """sbatch for the job behind it, and a copy of its script to remove afterwards. Raises UsageError.

    `words`: what follows `sbatch` or `hyperpod-kit job submit`; --auto-resume among them counts.
    """
    line = submit.parse(words)
    copy, wants = submit.rewrite(line)
    argv = submit.command(line, wants, copy)
    waits = ["--parsable", f"--dependency=afterok:{preload}", "--kill-on-invalid-dep=yes"]
    return [argv[0], *waits, *argv[1:]], copy if copy != line.script else None


def send(runner: Runner, first: Sequence[str], words: Sequence[str]) -> Submitted:
    """Submit both, or neither. Raises PreloadError, RunError, UsageError."""
    if words:
        submit.parse(words)
    preload = _number(runner.run(first, timeout=SECONDS).stdout)
    if not words:
        return Submitted(preload, None)
    copy = None
    try:
        argv, copy = behind_argv(words, preload)
        return Submitted(preload, _number(runner.run(argv, timeout=SECONDS).stdout))
    except BaseException:
        # Nobody would read what it brings.
        runner.run(["scancel", preload], timeout=SECONDS, check=False)
        raise
    finally:
        if copy is not None:
            by_descriptor.unlink(copy)


def _number(text: str) -> str:
    match = _NUMBER.search(text)
    if match is None:
        raise PreloadError(f"sbatch answered {text.strip()[:200]!r}, expected the job's number")
    return match[1]
