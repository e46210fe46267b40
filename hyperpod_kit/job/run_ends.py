"""How a run of the batch script ends before its time, as exceptions of the decider."""

from __future__ import annotations


class RunStopped(Exception):
    """Slurm or a user ended this run."""


class RunHandedBack(Exception):
    """This run cannot go on; the job goes back into the queue. `kind`: a class of outcome.py."""

    def __init__(self, kind: str, why: str) -> None:
        super().__init__(why)
        self.kind = kind
        self.why = why
