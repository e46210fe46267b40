"""How often a job may try again. Pure: rows of the ledger in, a decision out.

    crash, stall        `max_restarts` per checkpoint; the count starts anew when a newer valid checkpoint is restored
    preempted, again    does not count, but two in a row from the same checkpoint mean that nothing moves
    node lost           only the total counts
    launch failed       no checkpoint is at fault, and none is stepped back from: `max_launches` in a row
    poison              two failures in a row of the same rank with the same code from one checkpoint, or three of any
                        kind: the one before it is taken instead, once; when that fails so too, the job gives up
    quick failures      `max_quick` in a row, whatever was saved between them
    total               `max_requeues` runs of the batch script
A person who releases a job that gave up gives it new budgets.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from hyperpod_kit.system.wait import BackOff

Row = Mapping[str, Any]
Order = Optional[Tuple[int, int]]
"""(epoch, seq) of a checkpoint; None for a start from step 0."""

CRASHES = ("crash", "stall")
HANDED_BACK = ("preempted", "again")
LAUNCH_FAILED = "launch_failed"
"""Class of an attempt whose ranks have not run their command."""

QUICK = 600.0
"""Seconds: an attempt that fails sooner has not shown that the job can run."""


@dataclass(frozen=True)
class RetryPolicy:
    """Budgets, and the seconds between retries: none before the first, then `backoff`, which doubles with every further
    crash up to `backoff_cap`."""

    max_restarts: int = 3
    max_requeues: int = 20
    max_handed_back: int = 2
    max_quick: int = 20
    max_launches: int = 2
    backoff: float = 0.5
    backoff_cap: float = 60.0


@dataclass(frozen=True)
class Spent:
    """What of the budgets is gone, seen from the checkpoint that the next attempt would start from."""

    crashes: int = 0
    handed_back: int = 0
    requeues: int = 0
    quick: int = 0
    launches: int = 0


def starts(rows: Sequence[Row]) -> List[Row]:
    """The rows with each `attempt` begun from what its ranks said that they restored, where they said it.

    What they restore after HyperPod has started them again within the attempt is a start of its own.
    """
    found: List[Row] = []
    at: Dict[Any, int] = {}
    told = set()
    for row in rows:
        name = row.get("attempt")
        if row.get("event") == "attempt":
            at[name] = len(found)
        elif row.get("event") == "restored":
            if name in at and row.get("from"):
                start = {**found[at[name]], **{key: row.get(key) for key in ("from", "order", "step")}}
                if name in told:
                    found.append(start)
                else:
                    found[at[name]] = start
                told.add(name)
            continue
        found.append(row)
    return found


def begun(rows: Sequence[Row]) -> List[Row]:
    """The rows without attempts that never began, and their ends: they say nothing of what would have been loaded."""
    failed = {row.get("attempt") for row in rows if row.get("event") == "ended" and row.get("class") == LAUNCH_FAILED}
    # HyperPod may have launched its ranks before, with success.
    failed -= {row.get("attempt") for row in rows if row.get("event") == "restored"}
    failed.discard(None)
    return [row for row in rows if not (row.get("event") in ("attempt", "ended") and row.get("attempt") in failed)]


def _launches(rows: Sequence[Row]) -> int:
    """Launches that have failed in a row, up to the last one."""
    count = 0
    for row in rows:
        if row.get("event") == "ended":
            count = count + 1 if row.get("class") == LAUNCH_FAILED else 0
        elif row.get("event") in ("gave_up", "rewound"):
            count = 0
    return count


def spent(rows: Sequence[Row], chosen: Order, restart: int) -> Spent:
    """Count this job's rows. `chosen`: order of the next checkpoint, when it is known to be valid, or None; `restart`:
    how often Slurm requeued the job."""
    best: Order = None
    crashes = handed_back = first_restart = quick = 0
    for row in starts(begun(rows)):
        if row.get("event") == "attempt":
            order = _order(row)
            if _newer(order, best):
                best, crashes, handed_back = order, 0, 0
        elif row.get("event") == "ended":
            crashes += row.get("class") in CRASHES
            handed_back += row.get("class") in HANDED_BACK
            quick = quick + 1 if row.get("class") in CRASHES and (row.get("seconds") or 0) < QUICK else 0
        elif row.get("event") == "gave_up":
            crashes = handed_back = quick = 0
            first_restart = int(row.get("restart") or 0) + 1
        elif row.get("event") == "rewound":
            best, crashes, handed_back, quick = None, 0, 0, 0
    if _newer(chosen, best):
        crashes = handed_back = 0
    return Spent(crashes, handed_back, max(0, restart - first_restart), quick, _launches(rows))


def exhausted(policy: RetryPolicy, used: Spent) -> Optional[str]:
    """Why the next attempt must not be made, or None."""
    if used.crashes > policy.max_restarts:
        return f"{used.crashes} failures without a newer valid checkpoint (--max-restarts {policy.max_restarts})"
    if used.handed_back >= policy.max_handed_back:
        return f"handed back {used.handed_back} times without a newer valid checkpoint"
    if used.quick > policy.max_quick:
        return f"{used.quick} failures in a row, each within {QUICK / 60:g} minutes of its start"
    if used.launches > min(policy.max_launches, policy.max_restarts):
        return f"{used.launches} launches in a row have failed before a rank began"
    if used.requeues > policy.max_requeues:
        return f"requeued {used.requeues} times (--max-requeues {policy.max_requeues})"
    return None


@dataclass(frozen=True)
class Poison:
    """A checkpoint that is valid and ends every run that loads it. `again`: so did the one that was taken instead."""

    name: str
    why: str
    again: bool = False


def poison(rows: Sequence[Row]) -> Optional[Poison]:
    """The checkpoint to step back from, from this job's rows since a person last released it.

    Megatron-LM issue 5281: 44 identical crashes from one checkpoint.
    """
    found: Optional[Poison] = None
    best: Order = None
    started: Row = {}
    ends: List[str] = []
    for row in starts(begun(rows)):
        if row.get("event") == "attempt":
            if row.get("from") != started.get("from"):
                ends = []
            started = row
            if _newer(_order(row), best):
                best, found = _order(row), None
        elif row.get("event") == "ended" and row.get("class") in CRASHES and _order(started) is not None:
            ends.append(_words(row))
            why = _blames(ends)
            if why and found is None:
                found = Poison(str(started.get("from")), why)
            elif why and found and found.name != started.get("from"):
                found = Poison(found.name, found.why, again=True)
        elif row.get("event") in ("gave_up", "rewound"):
            found, best, ends = None, None, []
    return found


def _blames(ends: Sequence[str]) -> str:
    """What failures after loading one checkpoint say against it; "" when that may be chance."""
    if len(ends) >= 2 and ends[-1] == ends[-2]:
        return f"{ends[-1]}, twice after loading it"
    return f"{len(ends)} failures after loading it" if len(ends) >= 3 else ""


def _words(row: Row) -> str:
    """Who failed first and how."""
    first = row.get("first")
    if not isinstance(first, dict):
        return f"{row.get('class')} that no rank recorded"
    how = f"exited {first.get('code')}" if first.get("signal") is None else f"was killed by signal {first['signal']}"
    return f"rank {first.get('rank')} {how}"


def delay(policy: RetryPolicy, crashes: int, draw: Callable[[], float] = random.random) -> float:
    """Seconds before the retry after this many crashes: none after one, then exponential, half of each pause drawn.

    A pause is for what fails again and again; after a single crash all GPUs would wait for nothing.
    """
    return BackOff(policy.backoff, policy.backoff_cap, by_chance=0.5).pause_seconds(crashes - 1, draw)


def _order(row: Row) -> Order:
    order = row.get("order")
    return (int(order[0]), int(order[1])) if isinstance(order, (list, tuple)) and len(order) == 2 else None


def _newer(order: Order, than: Order) -> bool:
    return order is not None and (than is None or order > than)
