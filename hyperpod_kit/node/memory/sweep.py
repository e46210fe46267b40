"""Save and free what jobs left in shared memory here. One round of a timer: bounded, and never of a living job.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Set

from hyperpod_kit.errors import RunError
from hyperpod_kit.model.units import MEMORY_UNIT, flush_unit
from hyperpod_kit.node.context import Node
from hyperpod_kit.node.files import jot, read_json
from hyperpod_kit.node.locks import held as locked
from hyperpod_kit.node.memory import own
from hyperpod_kit.node.memory.left import NO_JOB, LeftCaptures, ended, held, stepped
from hyperpod_kit.node.slurm.drain import program
from hyperpod_kit.slurm import records
from hyperpod_kit.system.wait import BackOff

SECONDS = 60.0
"""That one round may take, and one write more: other jobs come in the next."""

FLUSH_SECONDS = 45.0
"""For one user's captures of one job, as in the Epilog."""

LONGEST_PAUSE = 1800.0

SLOW = "slow."


@dataclass(frozen=True)
class Swept:
    """What became of one job's captures. done: nothing of it is left to do here; lost: something whole was given up."""

    job: str
    uid: int
    done: bool
    words: str
    lost: bool = False


def sweep(node: Node) -> Optional[List[Swept]]:
    """One round; None when another is at it. Raises OSError when shared memory cannot be listed."""
    with locked(node, "memory", seconds=0) as mine:
        return _sweep(node) if mine else None


def _sweep(node: Node) -> List[Swept]:
    end = node.clock.monotonic() + SECONDS
    folder = node.paths.shared_memory
    own.give(node, "", asked_by=MEMORY_UNIT)
    tried: Dict[str, Any] = read_json(node.paths.memory_note) or {}
    noted: Dict[str, Any] = {
        key: value
        for key, value in tried.items()
        if key.startswith(SLOW) and 0 <= node.clock.wall() - value["at"] < LONGEST_PAUSE
    }
    found: List[Swept] = []
    slow: Set[int] = set()
    # Whose captures took their whole time comes after those whose did not, and once a round: nobody holds up others.
    lying = sorted(held(folder), key=lambda one: noted.get(f"{SLOW}{one.uid}", {"at": 0.0})["at"])
    here = stepped(node.paths.proc) if lying else set()
    for one in lying:
        if one.alive or one.job in here or one.uid in slow:
            continue
        before = tried.get(f"{one.uid}.{one.job}", {})
        noted[f"{one.uid}.{one.job}"] = before
        if _rests(before, node.clock.wall()) or node.clock.monotonic() >= end:
            continue
        try:
            began = node.clock.monotonic()
            done = _free(node, folder, one)
            if node.clock.monotonic() - began > FLUSH_SECONDS / 2:
                slow.add(one.uid)
                noted[f"{SLOW}{one.uid}"] = {"at": node.clock.wall()}
        except RunError as err:
            # Asked again at each round, and told of once: it costs nothing until Slurm is back.
            if not before.get("unanswered"):
                found.append(Swept(one.job, one.uid, False, f"Slurm cannot be asked about it: {err.message}"))
            noted[f"{one.uid}.{one.job}"] = {**before, "unanswered": True}
            continue
        if done is None:
            continue
        tries = before.get("tries", 0) + 1
        noted[f"{one.uid}.{one.job}"] = {
            "tries": tries,
            "next": node.clock.wall() + BackOff(60.0, LONGEST_PAUSE).pause(tries),
        }
        found.append(done)
    if noted or tried:
        jot(node.paths.memory_note, noted)
    return found


def _rests(before: Dict[str, Any], now: float) -> bool:
    """Whether the next try is yet to come. A clock that was set back must not put it off for good."""
    pause = float(before.get("next", 0.0)) - now
    return 0 < pause <= LONGEST_PAUSE


def _free(node: Node, folder: str, one: LeftCaptures) -> Optional[Swept]:
    """Save and free, when Slurm says that the job is not here; None when it is. Raises RunError without an answer."""
    if one.job == NO_JOB:
        # Of all jobs, what is older than MAX_AGE and whose trainers are dead: that is all that a flush takes unasked.
        return _flush(folder, one, job="none")
    try:
        found = records.read(node.runner, one.job, squeue=program(node, "squeue"))
    except records.Unknown:
        found = []
    if not ended(node.facts.node, found):
        return None
    if os.path.isdir(node.paths.real("/run/systemd/system")):
        # As the Epilog does it: some nodes hold more than a minute can save. One that runs already is not started.
        unit = flush_unit(one.job, 0, one.uid)
        node.runner.run(["systemctl", "--no-block", "start", unit], timeout=10)
        return Swept(one.job, one.uid, False, f"{unit} sees to them")
    return _flush(folder, one, job=one.job)


def _flush(folder: str, one: LeftCaptures, *, job: str) -> Optional[Swept]:
    """None when there is nothing to say: somebody may come yet for what lies there."""
    from hyperpod_kit.checkpoint.agent import flush_users  # seldom needed, and dear to what runs each minute
    from hyperpod_kit.checkpoint.agent.capture_age import MAX_AGE

    outcomes = flush_users.flush_as(
        one.uid, folder=folder, job=job, timeout=FLUSH_SECONDS, max_age=MAX_AGE, asked_by=MEMORY_UNIT
    )
    if one.job == NO_JOB and not outcomes:
        return None
    return Swept(
        one.job,
        one.uid,
        all(outcome.removed for outcome in outcomes),
        "; ".join(outcome.note for outcome in outcomes) or "nothing is left",
        any(outcome.lost for outcome in outcomes),
    )
