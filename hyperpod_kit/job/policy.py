"""How often a job may try again. Pure: rows of the ledger in, a decision out.

    crash, stall        `max_restarts` per checkpoint; the count starts anew when a newer valid checkpoint is chosen
    preempted, again    does not count, but two in a row from the same checkpoint mean that nothing moves
    node lost           only the total counts
    total               `max_requeues` runs of the batch script
A person who releases a job that gave up gives it new budgets.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, Callable, Mapping, Optional, Sequence, Tuple

Row = Mapping[str, Any]
Order = Optional[Tuple[int, int]]
"""(epoch, seq) of a checkpoint; None for a start from step 0."""

CRASHES = ("crash", "stall")
HANDED_BACK = ("preempted", "again")


@dataclass(frozen=True)
class Policy:
    """Budgets, and the seconds between retries: `backoff` doubles with every crash up to `backoff_cap`."""

    max_restarts: int = 3
    max_requeues: int = 20
    max_handed_back: int = 2
    backoff: float = 0.5
    backoff_cap: float = 60.0


@dataclass(frozen=True)
class Spent:
    """What of the budgets is gone, seen from the checkpoint that the next attempt would start from."""

    crashes: int = 0
    handed_back: int = 0
    requeues: int = 0


def spent(rows: Sequence[Row], chosen: Order, restart: int) -> Spent:
    """Count this job's rows. `chosen`: order of the next checkpoint; `restart`: how often Slurm requeued the job."""
    best: Order = None
    crashes = handed_back = first_restart = 0
    for row in rows:
        if row.get("event") == "attempt":
            order = _order(row)
            if _newer(order, best):
                best, crashes, handed_back = order, 0, 0
        elif row.get("event") == "ended":
            crashes += row.get("class") in CRASHES
            handed_back += row.get("class") in HANDED_BACK
        elif row.get("event") == "gave_up":
            crashes = handed_back = 0
            first_restart = int(row.get("restart", 0)) + 1
    if _newer(chosen, best):
        crashes = handed_back = 0
    return Spent(crashes, handed_back, max(0, restart - first_restart))


def exhausted(policy: Policy, used: Spent) -> Optional[str]:
    """Why the next attempt must not be made, or None."""
    if used.crashes > policy.max_restarts:
        return f"{used.crashes} failures without a newer valid checkpoint (--max-restarts {policy.max_restarts})"
    if used.handed_back >= policy.max_handed_back:
        return f"handed back {used.handed_back} times without a newer valid checkpoint"
    if used.requeues > policy.max_requeues:
        return f"requeued {used.requeues} times (--max-requeues {policy.max_requeues})"
    return None


def delay(policy: Policy, crashes: int, draw: Callable[[], float] = random.random) -> float:
    """Seconds before the retry after this many crashes: exponential, at least half of it, the rest drawn."""
    if crashes <= 0:
        return 0.0
    full = min(policy.backoff_cap, policy.backoff * 2.0 ** min(crashes - 1, 20))
    return full * (0.5 + 0.5 * draw())


def _order(row: Row) -> Order:
    order = row.get("order")
    return (int(order[0]), int(order[1])) if isinstance(order, (list, tuple)) and len(order) == 2 else None


def _newer(order: Order, than: Order) -> bool:
    return order is not None and (than is None or order > than)
