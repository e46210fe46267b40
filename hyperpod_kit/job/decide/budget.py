"""Decide how often a job may try again. Pure: rows of the ledger in, a decision out.

    crash, stall        `max_restarts` per checkpoint; the count starts anew when a newer valid checkpoint is restored;
                        so for a job that was cancelled in a hang and comes back
    preempted, again    does not count, but two in a row from the same checkpoint mean that nothing moves
    node lost           only the total counts
    launch failed       no checkpoint is at fault, and none is stepped back from: `max_launches` in a row
    poison              two failures in a row of the same rank with the same code from one checkpoint, or three of any
                        kind: the one before it is taken instead, once; when that fails so too, the job gives up
    quick failures      `max_quick` in a row, whatever was saved between them
    total               `max_requeues` runs of the batch script
A person who releases a job that gave up gives it new budgets.

Standard library only, Python 3.8: this file is part of the bundle.
"""

from __future__ import annotations

import random
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from hyperpod_kit.job.decide.outcome_kind import OutcomeKind
from hyperpod_kit.job.decide.retry_policy import RetryPolicy
from hyperpod_kit.system.wait import BackOff
from hyperpod_kit.untrusted.text import counted

Row = Mapping[str, Any]
CheckpointOrder = Optional[Tuple[int, int]]
"""(epoch, seq) of a checkpoint; None for a start from step 0."""

QUICK = 600.0
"""Seconds; an attempt that fails sooner has not shown that the job can run."""

_RENEWING_EVENTS = ("gave_up", "rewound")
"""After these the counts of failures start anew."""


class SpentBudget(NamedTuple):
    """What of the budgets is spent, seen from the checkpoint that the next attempt would start from."""

    crashes: int = 0
    handed_back: int = 0
    requeues: int = 0
    quick: int = 0
    launches: int = 0


def apply_restore_reports(rows: Sequence[Row]) -> List[Row]:
    """Return the rows with each `attempt` begun from what its ranks restored, where they reported it.

    What they restore after HyperPod has started them again within the attempt is a start of its own.
    """
    corrected: List[Row] = []
    index_of_attempt: Dict[Any, int] = {}
    reported = set()
    for row in rows:
        event, attempt = row.get("event"), row.get("attempt")
        if event == "attempt":
            index_of_attempt[attempt] = len(corrected)
        if event != "restored":
            corrected.append(row)
            continue
        if attempt not in index_of_attempt or not row.get("from"):
            continue
        index = index_of_attempt[attempt]
        start = {**corrected[index], **{key: row.get(key) for key in ("from", "order", "step")}}
        if attempt in reported:
            corrected.append(start)
        else:
            corrected[index] = start
        reported.add(attempt)
    return corrected


def drop_failed_launches(rows: Sequence[Row]) -> List[Row]:
    """Return the rows without attempts that never began: they say nothing of what would have been loaded."""
    failed = {row.get("attempt") for row in rows if _is_end_of(row, OutcomeKind.LAUNCH_FAILED)}
    # HyperPod may have launched its ranks before, with success.
    failed -= {row.get("attempt") for row in rows if row.get("event") == "restored"}
    failed.discard(None)
    return [row for row in rows if row.get("event") not in ("attempt", "ended") or row.get("attempt") not in failed]


def _is_end_of(row: Row, kind: OutcomeKind) -> bool:
    return row.get("event") == "ended" and OutcomeKind.of_row(row) is kind


def _is_failure(row: Row) -> bool:
    """Whether a row is the end of an attempt that counts against its checkpoint."""
    kind = OutcomeKind.of_row(row)
    return row.get("event") == "ended" and kind is not None and kind.costs_budget


def _count_failed_launches(rows: Sequence[Row]) -> int:
    """Count the launches that have failed in a row, up to the last one."""
    count = 0
    for row in rows:
        if _is_end_of(row, OutcomeKind.LAUNCH_FAILED):
            count += 1
        elif row.get("event") in ("ended", *_RENEWING_EVENTS):
            count = 0
    return count


class _BudgetCount:
    """The counts while the rows of a ledger are read in order."""

    def __init__(self) -> None:
        self.newest: CheckpointOrder = None
        self.crashes = 0
        self.handed_back = 0
        self.quick = 0
        self.first_restart = 0

    def start_from(self, order: CheckpointOrder) -> None:
        """Count anew where a newer checkpoint was restored."""
        if is_newer(order, self.newest):
            self.newest = order
            self.crashes = self.handed_back = 0

    def end(self, row: Row) -> None:
        """Count the end of an attempt."""
        kind = OutcomeKind.of_row(row)
        if kind is not None and kind.is_handed_back:
            self.handed_back += 1
        if not _is_failure(row):
            self.quick = 0
            return
        self.crashes += 1
        is_quick = (row.get("seconds") or 0) < QUICK
        if is_quick:
            self.quick += 1
        else:
            self.quick = 0

    def renew(self, row: Row) -> None:
        """Count failures anew after one of `_RENEWING_EVENTS`, and after `gave_up` the runs as well."""
        self.crashes = self.handed_back = self.quick = 0
        if row.get("event") == "gave_up":
            self.first_restart = int(row.get("restart") or 0) + 1
        else:
            self.newest = None


def count_spent_budget(rows: Sequence[Row], chosen: CheckpointOrder, restart: int) -> SpentBudget:
    """Return what of the budgets this job has spent, by its rows.

    Args:
        rows: Of the ledger, of this job alone.
        chosen: Order of the next checkpoint where it is known to be valid, otherwise None.
        restart: How often Slurm has requeued the job.
    """
    count = _BudgetCount()
    for row in apply_restore_reports(drop_failed_launches(rows)):
        event = row.get("event")
        if event == "attempt":
            count.start_from(_order_of(row))
        elif event == "ended":
            count.end(row)
        elif event in _RENEWING_EVENTS:
            count.renew(row)
    count.start_from(chosen)
    requeues = max(0, restart - count.first_restart)
    return SpentBudget(count.crashes, count.handed_back, requeues, count.quick, _count_failed_launches(rows))


def exhausted(policy: RetryPolicy, spent: SpentBudget) -> Optional[str]:
    """Return why the next attempt must not be made, or None."""
    if spent.crashes > policy.max_restarts:
        return (
            f"{counted(spent.crashes, 'failure')} without a newer valid checkpoint "
            f"(--max-restarts {policy.max_restarts})"
        )
    if spent.handed_back >= policy.max_handed_back:
        return f"requested another run {counted(spent.handed_back, 'time')} without a newer valid checkpoint"
    if spent.quick > policy.max_quick:
        return f"{spent.quick} failures in a row, each within {QUICK / 60:g} minutes of its start"
    if spent.launches > min(policy.max_launches, policy.max_restarts):
        return f"{counted(spent.launches, 'launch', 'launches in a row')} failed before a rank began"
    if spent.requeues > policy.max_requeues:
        return f"requeued {counted(spent.requeues, 'time')} (--max-requeues {policy.max_requeues})"
    return None


class PoisonCheckpoint(NamedTuple):
    """A checkpoint that is valid and ends every run that loads it.

    Attributes:
        name: Its checkpoint id.
        reason: What speaks against it.
        is_repeated: Whether the one that was taken instead has ended in the same way.
    """

    name: str
    reason: str
    is_repeated: bool = False


def find_poison_checkpoint(rows: Sequence[Row]) -> Optional[PoisonCheckpoint]:
    """Return the checkpoint to step back from, by this job's rows since a person last released it.

    Megatron-LM issue 5281: 44 identical crashes from one checkpoint.
    """
    poison: Optional[PoisonCheckpoint] = None
    newest: CheckpointOrder = None
    start: Row = {}
    failures: List[str] = []
    for row in apply_restore_reports(drop_failed_launches(rows)):
        event = row.get("event")
        if event == "attempt":
            if row.get("from") != start.get("from"):
                failures = []
            start = row
            if is_newer(_order_of(row), newest):
                newest, poison = _order_of(row), None
        elif event in _RENEWING_EVENTS:
            poison, newest, failures = None, None, []
        elif _is_failure(row) and _order_of(start) is not None:
            failures.append(_describe_failure(row))
            poison = _blame(poison, str(start.get("from")), failures)
    return poison


def _blame(
    poison: Optional[PoisonCheckpoint], checkpoint_id: str, failures: Sequence[str]
) -> Optional[PoisonCheckpoint]:
    """Return what is poison after one more failure of a start from this checkpoint."""
    reason = _repeated_failure(failures)
    if not reason:
        return poison
    if poison is None:
        return PoisonCheckpoint(checkpoint_id, reason)
    if poison.name != checkpoint_id:
        return PoisonCheckpoint(poison.name, poison.reason, is_repeated=True)
    return poison


def _repeated_failure(failures: Sequence[str]) -> str:
    """Return what failures after loading one checkpoint say against it; "" while that may be chance."""
    if len(failures) >= 2 and failures[-1] == failures[-2]:
        return f"{failures[-1]}, twice after loading it"
    if len(failures) >= 3:
        return f"{len(failures)} failures after loading it"
    return ""


def _describe_failure(row: Row) -> str:
    """Return which rank failed first, and how."""
    first = row.get("first")
    if not isinstance(first, dict):
        return f"{row.get('class')}, not recorded by any rank"
    if first.get("signal") is None:
        return f"rank {first.get('rank')} exited {first.get('code')}"
    return f"rank {first.get('rank')} was killed by signal {first['signal']}"


def retry_delay(policy: RetryPolicy, crashes: int, draw: Callable[[], float] = random.random) -> float:
    """Return the seconds before the retry after this many crashes: none after one, then exponential, half of it drawn.

    A pause is for what fails again and again; after a single crash all GPUs would wait for nothing.
    """
    return BackOff(policy.backoff, policy.backoff_cap, by_chance=0.5).pause_seconds(crashes - 1, draw)


def _order_of(row: Row) -> CheckpointOrder:
    order = row.get("order")
    if isinstance(order, (list, tuple)) and len(order) == 2:
        return (int(order[0]), int(order[1]))
    return None


def is_newer(order: CheckpointOrder, than: CheckpointOrder) -> bool:
    """Return whether a checkpoint of this order is newer; a start from step 0 is newer than nothing."""
    return order is not None and (than is None or order > than)
