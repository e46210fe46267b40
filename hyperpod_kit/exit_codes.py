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
    CANCELLED_IN_HANG = 85
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
    ExitCode.OK: "The command succeeded and found no problem.",
    ExitCode.PROBLEM: "The configuration, the cluster, a mount, a checkpoint or the data has a problem.",
    ExitCode.USAGE: "The command line is invalid, on any machine.",
    ExitCode.ABSENT: (
        "Something that the command names or needs does not exist or cannot be reached: a file, a root, a cluster, "
        "a job, credentials, an endpoint, an extra that is not installed; or it did not answer in time. Nothing is "
        "known in that case, and nothing is reported as zero."
    ),
    ExitCode.NO_STORAGE: (
        "The storage of the training data or of the checkpoint root does not respond, after all retries. The job "
        "may be run again."
    ),
    ExitCode.AGAIN: "`job run`: the job has saved and asks to be run again.",
    ExitCode.NOT_MOUNTED: "A rank of `job run`: its container has no mount that holds the checkpoint root.",
    ExitCode.CANCELLED_IN_HANG: (
        "`job run --requeue-after-cancel`: the job was cancelled while its ranks hung, and asks to be run again."
    ),
    ExitCode.GAVE_UP: (
        "`job run`: the job gave up and is held for manual action. `checkpoint flush`: a capture is lost."
    ),
    ExitCode.NO_PYTHON: "A rank of `job run`: its container has no Python that can start it.",
    ExitCode.STOPPED: "The command was stopped by Ctrl-C or by answering no.",
    ExitCode.READER_GONE: "The reader of a pipe has closed it (`… | head`).",
    ExitCode.TERMINATED: "`job run`: Slurm ended the job because of scancel or a limit.",
}

SUMMARY = (
    "Exit codes: 0 success, 1 a problem was found, 2 the command line is invalid, 3 something that it names does "
    "not exist or cannot be reached."
)
"""For --help."""
