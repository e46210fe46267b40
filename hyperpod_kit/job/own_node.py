"""When the checkpoint root hangs on the batch host alone, `job run` hangs with it: its log and its ledger are there.

A thread that touches neither gives the job back to Slurm, which ends this run of it, and starts it on nodes that serve:
this one has been drained for its mount.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Callable, Optional

from hyperpod_kit.errors import RunError
from hyperpod_kit.job.storage import LOOK, MARKS, Probe, doubted
from hyperpod_kit.run import Runner
from hyperpod_kit.slurm import control
from hyperpod_kit.slurm.environment import JobEnvironment

PATIENCE = 20.0
"""Seconds in which the root has to stay away; the checks of the node have taken their own time before."""


class OwnNode:
    """`node`: this host in Slurm, `state`: the directory to ask for. Runs while it is entered."""

    def __init__(self, runner: Runner, job: JobEnvironment, node: str, state: str, *, marks: str = MARKS,
                 look: float = LOOK, patience: float = PATIENCE) -> None:
        self._runner = runner
        self._job = job
        self._node = node
        self._probe = Probe(state)
        self._marks = marks
        self._look = look
        self._patience = patience
        self._over = threading.Event()

    def __enter__(self) -> OwnNode:
        threading.Thread(target=self._watch, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()

    def _watch(self, clock: Callable[[], float] = time.monotonic) -> None:
        since: Optional[float] = None
        while not self._over.wait(self._look):
            if not doubted(self._marks) or self._probe.answers():
                since = None
                continue
            since = clock() if since is None else since
            if clock() - since >= self._patience and held_alone(self._runner, self._node):
                with contextlib.suppress(RunError):
                    control.requeue(self._runner, self._job.requeue_id)
                    return


def held_alone(runner: Runner, node: str) -> bool:
    """Whether this node is drained for a mount, and most others are not: then the job is better off elsewhere.

    False when slurmctld does not answer.
    """
    try:
        found = control.all_nodes(runner)
    except RunError:
        return False
    held = [record.name for record in found.values() if record.reason.startswith(control.MOUNT_REASON)]
    return node in held and 2 * len(held) <= len(found)
