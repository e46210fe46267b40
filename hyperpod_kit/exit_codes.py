"""Every exit code of hyperpod-kit, on an admin's machine, in a job and on a node; the documentation's page shows these.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import enum


class ExitCode(enum.IntEnum):
    """How a command ended. 2 is about the command line alone: another machine, or another day, changes nothing."""

    OK = 0
    PROBLEM = 1
    USAGE = 2
    ABSENT = 3
    NO_STORAGE = 74
    AGAIN = 75
    NOT_MOUNTED = 78
    GAVE_UP = 86
    NO_PYTHON = 127
    STOPPED = 130
    READER_GONE = 141
    TERMINATED = 143

    def __str__(self) -> str:
        return str(int(self))

    @property
    def meaning(self) -> str:
        """One sentence for the documentation."""
        return _MEANINGS[self]


_MEANINGS = {
    ExitCode.OK: "The command did what it was asked for, and found nothing wrong.",
    ExitCode.PROBLEM: "Something is wrong with the configuration, the cluster, a mount, a checkpoint or the data.",
    ExitCode.USAGE: "The command line is wrong by itself, whatever is there.",
    ExitCode.ABSENT: (
        "What the command names or needs is not there or cannot be reached: a file, a root, a cluster, a job, "
        "credentials, an endpoint, an extra that is not installed; or time is up before an answer. Nothing is known "
        "then, and nothing is reported as zero."
    ),
    ExitCode.NO_STORAGE: (
        "Storage does not answer for training data or for the checkpoint root, and everything was tried: the job may "
        "run again."
    ),
    ExitCode.AGAIN: "`job run`: the job has saved, and wants to run again.",
    ExitCode.NOT_MOUNTED: "A rank of `job run`: its container has no mount that holds the checkpoint root.",
    ExitCode.GAVE_UP: (
        "`job run`: the job gave up, is held, and waits for a person. `checkpoint flush`: a capture is lost."
    ),
    ExitCode.NO_PYTHON: "A rank of `job run`: its container has no Python that can start it.",
    ExitCode.STOPPED: "Ctrl-C, or a no to a question, stopped the command.",
    ExitCode.READER_GONE: "The reader of a pipe has gone (`… | head`).",
    ExitCode.TERMINATED: "`job run`: Slurm ended the job: scancel, or a limit.",
}

SUMMARY = (
    "Exit codes: 0 ok, 1 found something wrong, 2 the command line is wrong by itself, 3 what it names is not there or "
    "cannot be reached."
)
"""For --help."""
